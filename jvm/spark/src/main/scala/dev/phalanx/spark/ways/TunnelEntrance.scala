package dev.phalanx.spark.ways

import java.io.IOException
import java.net.{InetAddress, InetSocketAddress}
import java.nio.ByteBuffer
import java.nio.channels.{SelectionKey, Selector, ServerSocketChannel, SocketChannel}
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

/** An executor's end of the tunnel to one job's hub: a port of this host's loopback, whose connections go on through
  * Spark's own messages. The node, which speaks TLS with the hub, takes it where the hub can't be reached directly.
  *
  * There is a thread that accepts, and one for each connection. Both sides' bytes wait for their reader: what the
  * other end doesn't take stays here.
  *
  *   - WAY-7 (idle-is-cheap): a connection on which nothing moves has a turn in
  *     [[TunnelEntrance.LongestPauseMillis]].
  *
  * @param ask takes a turn at the driver, and waits for the answer
  */
final private[spark] class TunnelEntrance(job: String, ask: TunnelTurn => TunnelAnswer) extends AutoCloseable {
  import TunnelEntrance._

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val listener = ServerSocketChannel.open().bind(new InetSocketAddress(InetAddress.getLoopbackAddress, 0))
  private val connections = ConcurrentHashMap.newKeySet[Connection]()
  @volatile private var isClosed = false
  private val accepts = daemon("phalanx-tunnel-accept", () => accept())

  /** Where it takes connections: `host:port`. */
  val address: String = {
    val at = listener.getLocalAddress.asInstanceOf[InetSocketAddress]
    val host = at.getAddress.getHostAddress
    if (host.contains(':')) s"[$host]:${at.getPort}" else s"$host:${at.getPort}"
  }

  accepts.start()

  override def close(): Unit = {
    isClosed = true
    listener.close()
    accepts.join(EndMillis)
    connections.asScala.foreach(_.end())
    connections.asScala.foreach(_.thread.join(EndMillis))
  }

  private def accept(): Unit =
    while (listener.isOpen)
      try take(listener.accept())
      catch {
        case _: IOException if !listener.isOpen => ()
        case problem: IOException               => // descriptors may have run out for a while
          log.warn(s"can't connect to the driver through Spark: $problem")
          Thread.sleep(LongestPauseMillis)
      }

  private def take(channel: SocketChannel): Unit =
    try if (connections.size < MostConnections) {
        val connection = new Connection(channel)
        connections.add(connection)
        connection.thread.start()
      } else channel.close()
    catch {
      case problem: IOException =>
        channel.close()
        throw problem
    }

  private def daemon(name: String, run: () => Unit): Thread = {
    val thread = new Thread(() => run(), name)
    thread.setDaemon(true)
    thread
  }

  private class Connection(channel: SocketChannel) {
    val thread: Thread = daemon("phalanx-tunnel-connection", () => carry())
    private val name = UUID.randomUUID().toString
    private val selector = Selector.open()
    private val up = ByteBuffer.allocate(TurnBytes)
    private var isOver = false

    /** Has the thread end soon. */
    def end(): Unit = {
      channel.close()
      selector.wakeup()
      thread.interrupt()
    }

    private def carry(): Unit =
      try {
        channel.configureBlocking(false)
        val key = channel.register(selector, SelectionKey.OP_READ)
        var pause = 0L
        while (!isClosed && !isOver) {
          if (pause > 0) {
            key.interestOps(if (up.hasRemaining) SelectionKey.OP_READ else 0)
            selector.select(pause)
            selector.selectedKeys.clear()
          }
          val moved = turn(key)
          pause = if (moved) 0 else math.min(math.max(2 * pause, 1), LongestPauseMillis)
        }
      } catch {
        case NonFatal(problem)       => log.debug(s"a connection through Spark ends: $problem")
        case _: InterruptedException => ()
      } finally {
        channel.close()
        selector.close()
        connections.remove(this): Unit
      }

    /** Whether anything moved. */
    private def turn(key: SelectionKey): Boolean = {
      val isEnd = channel.read(up) < 0
      up.flip()
      val bytes = new Array[Byte](up.remaining)
      up.duplicate().get(bytes)
      val answer = ask(TunnelTurn(job, name, bytes, isEnd))
      up.position(answer.taken)
      up.compact()
      write(key, ByteBuffer.wrap(answer.bytes))
      isOver = answer.isOver
      answer.taken > 0 || answer.bytes.nonEmpty
    }

    private def write(key: SelectionKey, bytes: ByteBuffer): Unit =
      while (bytes.hasRemaining && !isClosed)
        if (channel.write(bytes) == 0) {
          key.interestOps(SelectionKey.OP_WRITE)
          selector.select(LongestPauseMillis)
          selector.selectedKeys.clear()
        }
  }
}

private[spark] object TunnelEntrance {

  /** How much one turn brings at the most. */
  private val TurnBytes = 256 << 10

  /** How long a connection on which nothing moves waits for its next turn: then the hub's orders come so late. */
  val LongestPauseMillis = 200L

  /** A node has one for orders, one for output, and one for each result on its way. */
  private val MostConnections = 64

  /** How long a thread may take to end; it holds nothing that anybody waits for. */
  private val EndMillis = 1000L

  @volatile private var way: Option[TunnelTurn => TunnelAnswer] = None

  /** From now on nodes of this executor have tunnels, by this way. */
  def by(ask: TunnelTurn => TunnelAnswer): Unit = way = Some(ask)

  /** Nodes have no tunnels any more. */
  def byNothing(): Unit = way = None

  /** A tunnel to the hub of a job, if this executor has a way to the driver; its caller closes it. */
  def to(job: String): Option[TunnelEntrance] = way.map(new TunnelEntrance(job, _))
}
