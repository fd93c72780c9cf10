package dev.phalanx.spark.ways

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.{SelectionKey, Selector, ServerSocketChannel, SocketChannel}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.locks.ReentrantLock
import java.util.function.Consumer

import scala.collection.mutable

import org.slf4j.LoggerFactory

/** Where tasks reach the hub of a client of Spark Connect that they can't connect to: a port of the Connect server's
  * host, whose connections go on to the client as answers to a command of its own, and back by short ones. What goes
  * through is the hub's TLS: the relay can't read it.
  *
  * The thread of the client's command does it all, and blocks in [[stream]]. It is Spark Connect's; none belongs to a
  * relay.
  *
  *   - WAY-1 (nothing-lost): a message stays until the client has said that it has it, and is sent again when the
  *     client opens the relay again. A command of the client's that comes twice is done once.
  *   - WAY-2 (bounded): what waits for the client is at most [[Relay.WindowBytes]] and a message, of one connection
  *     at most [[Relay.ConnectionBytes]]; what waits for a task is at most [[Relay.PendingBytes]]. What doesn't fit
  *     stays in the task or at the client.
  *   - WAY-3 (unanswered): of a connection that the hub hasn't answered, [[Relay.UnansweredBytes]] are read, and it
  *     is closed after [[Relay.UnansweredMillis]]. There are [[Relay.MostUnanswered]] at most.
  *   - WAY-4 (ends): a relay ends with the command that carries it, however that ends, unless its client has opened
  *     it again; and when its client has been silent for the time that it has named.
  */
final private[ways] class Relay(
    listener: ServerSocketChannel,
    address: String,
    patienceMillis: Long,
    clockMillis: () => Long
) {
  import Relay._
  import RelayWire.Frame

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val selector = Selector.open()
  private val connections = mutable.LinkedHashMap.empty[Int, Connection]
  private val unacknowledged = mutable.Queue.empty[(Long, Array[Byte])]
  private var unacknowledgedBytes = 0L
  private var nextNumber = 0L
  private var lastConnection = 0
  private var lastCommand = 0L
  private var lastRead = 0

  /** Of the message that is being made. */
  private var collected = 0L
  private val buffer = ByteBuffer.allocate(256 << 10)
  private var heardAt = clockMillis()
  private val carrying = new ReentrantLock
  @volatile private var streams = 0
  @volatile private var closed = false

  listener.configureBlocking(false)
  listener.register(selector, SelectionKey.OP_ACCEPT)
  keep(Seq(Frame(RelayWire.Address, 0, address.getBytes(UTF_8))))

  def isClosed: Boolean = closed

  /** Ends it soon. */
  def close(): Unit = {
    closed = true
    selector.wakeup(): Unit
  }

  /** Carries the tasks' connections, from the message with the number `next` on, until the relay ends or another call
    * takes over.
    */
  def stream(next: Long, answer: Consumer[Array[Byte]]): Unit = {
    val mine = synchronized {
      heardAt = clockMillis()
      acknowledge(next)
      streams += 1
      streams
    }
    selector.wakeup()
    try carrying.lockInterruptibly()
    catch {
      case interrupted: InterruptedException =>
        if (streams == mine) end()
        throw interrupted
    }
    try {
      synchronized(unacknowledged.toList).foreach { case (_, message) => answer.accept(message) }
      while (!closed && streams == mine) {
        selector.select(TickMillis)
        if (Thread.interrupted()) throw new InterruptedException("the run was interrupted")
        if (streams == mine) turn().foreach(answer.accept)
      }
    } finally {
      if (streams == mine) end()
      carrying.unlock()
    }
  }

  /** Takes what a client has sent; says from which connections it should read nothing for now.
    *
    * @throws java.lang.IllegalArgumentException a command is missing
    */
  def take(send: RelayWire.Send): Array[Byte] = synchronized {
    heardAt = clockMillis()
    acknowledge(send.next)
    if (send.number == lastCommand + 1) {
      lastCommand = send.number
      for ((id, consumed) <- send.consumed; connection <- connections.get(id)) connection.consumed = consumed
      for (frame <- send.frames; connection <- connections.get(frame.connection)) connection.take(frame)
    } else if (send.number != lastCommand)
      throw new IllegalArgumentException(s"command ${send.number} follows $lastCommand")
    selector.wakeup()
    RelayWire.stalled(connections.valuesIterator.filter(_.pendingBytes > PendingBytes / 2).map(_.id).toList)
  }

  private def acknowledge(next: Long): Unit =
    while (unacknowledged.headOption.exists(_._1 < next)) unacknowledgedBytes -= unacknowledged.dequeue()._2.length

  /** Moves what there is; the message for the client, if there is anything to tell. */
  private def turn(): Option[Array[Byte]] = synchronized {
    val now = clockMillis()
    if (now - heardAt > patienceMillis) {
      log.warn(
        s"a Spark Connect client has been silent for ${now - heardAt} ms; its connection to its run's tasks ends"
      )
      close()
    }
    val frames = mutable.ArrayBuffer.empty[Frame]
    if (selector.selectedKeys.removeIf(_.channel eq listener)) accept(now, frames)
    selector.selectedKeys.clear()
    collected = 0
    // Who was read last is last: none waits for ever.
    val (before, after) = connections.valuesIterator.toList.partition(_.id <= lastRead)
    (after ++ before).foreach(_.turn(now, frames))
    if (frames.isEmpty) None else Some(keep(frames))
  }

  private def keep(frames: Iterable[Frame]): Array[Byte] = {
    val message = RelayWire.message(nextNumber, frames)
    unacknowledged.enqueue(nextNumber -> message)
    unacknowledgedBytes += message.length
    nextNumber += 1
    message
  }

  private def accept(now: Long, frames: mutable.Buffer[Frame]): Unit = {
    var channel = listener.accept()
    while (channel != null) {
      if (connections.size < MostConnections && connections.valuesIterator.count(!_.isAnswered) < MostUnanswered) {
        lastConnection += 1
        connections(lastConnection) = new Connection(lastConnection, channel, now)
        frames += Frame(RelayWire.Opened, lastConnection, Array.empty)
      } else channel.close()
      channel = listener.accept()
    }
  }

  private def end(): Unit = synchronized {
    closed = true
    listener.close()
    connections.valuesIterator.foreach(_.channel.close())
    connections.clear()
    unacknowledged.clear()
    selector.close()
  }

  private class Connection(val id: Int, val channel: SocketChannel, openedAt: Long) {
    var consumed = 0L
    var pendingBytes = 0L
    var isAnswered = false
    private val pending = mutable.Queue.empty[ByteBuffer]
    private var isEnding = false
    private var sent = 0L

    channel.configureBlocking(false)
    channel.setOption[java.lang.Boolean](java.net.StandardSocketOptions.TCP_NODELAY, true)
    private val key = channel.register(selector, SelectionKey.OP_READ)

    def take(frame: Frame): Unit = {
      isAnswered = true
      if (frame.kind == RelayWire.Ended) isEnding = true
      else if (pendingBytes + frame.bytes.length <= PendingBytes) {
        pending.enqueue(ByteBuffer.wrap(frame.bytes))
        pendingBytes += frame.bytes.length
      } else { // a client that doesn't do what it is told
        pending.clear()
        isEnding = true
      }
    }

    def turn(now: Long, frames: mutable.Buffer[Frame]): Unit =
      try {
        write()
        val isOver = read(frames)
        val isLate = !isAnswered && now - openedAt > UnansweredMillis
        if (isOver || isLate) ends(frames, tells = true)
        else if (isEnding && pending.isEmpty) ends(frames, tells = false)
        else key.interestOps(wanted): Unit
      } catch {
        case _: IOException => ends(frames, tells = true)
      }

    private def write(): Unit =
      while (
        pending.headOption.exists { bytes =>
          pendingBytes -= channel.write(bytes)
          !bytes.hasRemaining
        }
      ) pending.dequeue(): Unit

    /** Whether the task has ended it. */
    private def read(frames: mutable.Buffer[Frame]): Boolean = {
      val most = math.min(room, MessageBytes - collected)
      if (most <= 0) false
      else {
        buffer.clear().limit(math.min(most, buffer.capacity.toLong).toInt)
        val read = channel.read(buffer)
        if (read > 0) {
          sent += read
          collected += read
          lastRead = id
          frames += Frame(RelayWire.Data, id, buffer.array.take(read))
        }
        read < 0
      }
    }

    /** How much may wait for the client beyond what does. */
    private def room: Long = {
      val own = (if (isAnswered) ConnectionBytes else UnansweredBytes) - (sent - consumed)
      math.min(own, WindowBytes - unacknowledgedBytes - collected)
    }

    private def wanted: Int =
      (if (room > 0) SelectionKey.OP_READ else 0) | (if (pending.isEmpty) 0 else SelectionKey.OP_WRITE)

    private def ends(frames: mutable.Buffer[Frame], tells: Boolean): Unit = {
      channel.close()
      connections -= id
      if (tells) frames += Frame(RelayWire.Ended, id, Array.empty)
    }
  }
}

private[ways] object Relay {
  val WindowBytes: Long = 8L << 20
  val ConnectionBytes: Long = 2L << 20
  private val MessageBytes = 1L << 20
  val PendingBytes: Long = 1L << 20
  val UnansweredBytes: Long = 64L << 10
  val UnansweredMillis = 10000L
  val MostUnanswered = 256
  private val MostConnections = 16384

  /** How often a relay on which nothing happens looks at the clock. */
  private val TickMillis = 500L
}
