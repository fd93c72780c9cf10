package dev.phalanx.spark.ways

import java.net.InetSocketAddress
import java.nio.ByteBuffer
import java.nio.channels.SocketChannel

import scala.collection.mutable
import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

/** The driver's ends of the tunnels: connections to this application's hubs, and to nothing else.
  *
  * No thread belongs to them. Each turn of an executor's end moves what there is, without waiting: Spark has one
  * thread for the messages of all executors.
  *
  *   - WAY-8 (own-hubs): a turn reaches the hub of a job whose stage runs, by its id; an executor names no address.
  *   - WAY-9 (nothing-left): the connections of a job end with its stage, those of an executor that is gone after
  *     [[TunnelExits.IdleMillis]].
  */
final private[spark] class TunnelExits(clockMillis: () => Long) {
  import TunnelExits._

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val hubs = mutable.Map.empty[String, InetSocketAddress]
  private val exits = mutable.Map.empty[String, Exit]
  private val read = ByteBuffer.allocate(AnswerBytes)

  /** Lets tunnels to the hub of a job through while `stage` runs. */
  def servingWhile[T](job: String, hub: InetSocketAddress)(stage: => T): T = {
    begin(job, hub)
    try stage
    finally end(job)
  }

  /** Lets tunnels to the hub of a job through until [[end]]. */
  def begin(job: String, hub: InetSocketAddress): Unit = synchronized(hubs(job) = hub)

  /** Ends those of a job. */
  def end(job: String): Unit = synchronized {
    hubs -= job
    close(exits.filter { case (_, exit) => exit.job == job })
  }

  /** One turn of a connection, which the first one opens. */
  def answer(turn: TunnelTurn): TunnelAnswer = synchronized {
    val now = clockMillis()
    close(exits.filter { case (_, exit) => now - exit.usedAt > IdleMillis })
    try {
      val exit = exits.getOrElseUpdate(turn.connection, open(turn.job))
      exit.usedAt = now
      val answer = exit.turn(turn, read)
      if (answer.isOver) close(Map(turn.connection -> exit))
      answer
    } catch {
      case NonFatal(problem) =>
        log.debug(s"a connection through Spark ends: $problem")
        close(exits.filter { case (connection, _) => connection == turn.connection })
        TunnelAnswer(0, Array.empty, isOver = true)
    }
  }

  private def open(job: String): Exit = {
    val hub = hubs.getOrElse(job, throw new NoSuchElementException(s"no stage of job $job is running"))
    val channel = SocketChannel.open()
    try {
      channel.socket.connect(hub, ConnectMillis)
      channel.socket.setTcpNoDelay(true)
      channel.configureBlocking(false)
      new Exit(job, channel)
    } catch {
      case NonFatal(problem) =>
        channel.close()
        throw problem
    }
  }

  private def close(these: collection.Map[String, Exit]): Unit = these.toSeq.foreach { case (connection, exit) =>
    exits -= connection
    exit.channel.close()
  }
}

private[spark] object TunnelExits {

  /** How long a connection may be without a turn: longer than a node may be silent by its job's `nodeTimeout`. */
  val IdleMillis = 60000L

  /** The hub is on this host. */
  private val ConnectMillis = 1000

  /** How much one answer brings at the most. */
  private val AnswerBytes = 1 << 20

  /** Those of this JVM. */
  val here = new TunnelExits(() => System.nanoTime() / 1000000)

  private class Exit(val job: String, val channel: SocketChannel) {
    var usedAt = 0L

    /** Moves what there is, through `buffer`. */
    def turn(turn: TunnelTurn, buffer: ByteBuffer): TunnelAnswer = {
      val taken = channel.write(ByteBuffer.wrap(turn.bytes))
      buffer.clear()
      var read = channel.read(buffer)
      while (read > 0) read = channel.read(buffer)
      val isOver = read < 0 || (turn.isOver && taken == turn.bytes.length)
      TunnelAnswer(taken, buffer.array.take(buffer.position()), isOver)
    }
  }
}
