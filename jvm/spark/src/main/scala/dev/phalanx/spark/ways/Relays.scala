package dev.phalanx.spark.ways

import java.io.IOException
import java.net.{InetAddress, InetSocketAddress}
import java.nio.channels.ServerSocketChannel
import java.util.function.Consumer

import scala.collection.mutable
import scala.util.Try

import org.apache.spark.SparkConf

import dev.phalanx.spark.internal.Version

/** The relays of this server's clients: what their commands reach.
  *
  *   - WAY-5 (own-relays): a relay is named by its client, and only the session that opened it reaches it.
  */
final private[spark] class Relays(clockMillis: () => Long) {
  import Relays._

  private val relays = mutable.Map.empty[(String, String), Relay]

  /** Does what a client's command says, and answers it. That of an opening command ends with its relay, or when the
    * client opens it again.
    *
    * @param owner the client's session
    * @throws java.lang.IllegalArgumentException it can't be done; why
    */
  def process(command: Array[Byte], owner: String, conf: SparkConf, answer: Consumer[Array[Byte]]): Unit =
    RelayWire.command(command) match {
      case open: RelayWire.Open =>
        val key = (owner, open.relay)
        val relay = opened(key, open, conf)
        try relay.stream(open.next, answer)
        finally if (relay.isClosed) forget(key, relay)
      case send: RelayWire.Send   => answer.accept(of(owner, send.relay).take(send))
      case close: RelayWire.Close =>
        synchronized(relays.remove((owner, close.relay)).foreach(_.close()))
    }

  private def opened(key: (String, String), open: RelayWire.Open, conf: SparkConf): Relay = synchronized {
    if (open.version != Version.phalanx)
      throw new IllegalArgumentException(
        s"the Spark Connect server has Phalanx version ${Version.phalanx}, but the client has version ${open.version}"
      )
    if (open.next == 0 && !relays.contains(key)) {
      if (relays.size >= MostRelays)
        throw new IllegalArgumentException(s"the Spark Connect server has $MostRelays relays already")
      val bind = conf.getOption("spark.driver.bindAddress")
      val host = conf.getOption("spark.driver.host").getOrElse(InetAddress.getLocalHost.getHostAddress)
      val listener = listening(bind.filter(_.nonEmpty).getOrElse(host), open.port)
      val port = listener.getLocalAddress.asInstanceOf[InetSocketAddress].getPort
      val address = if (host.contains(':') && !host.startsWith("[")) s"[$host]:$port" else s"$host:$port"
      relays(key) = new Relay(listener, address, open.patienceMillis.toLong, clockMillis)
    }
    of(key._1, key._2)
  }

  private def forget(key: (String, String), relay: Relay): Unit = synchronized {
    if (relays.get(key).exists(_ eq relay)) relays.remove(key): Unit
  }

  private def of(owner: String, relay: String): Relay = synchronized(
    relays
      .get((owner, relay))
      .filterNot(_.isClosed)
      .getOrElse(throw new IllegalArgumentException("this session has no such relay on the Spark Connect server"))
  )
}

private[spark] object Relays {

  /** How many runs of clients a server relays at the same time. */
  private val MostRelays = 256

  /** How many ports are tried, as a hub does. */
  private val Ports = 16

  private val ofThisJvm = new Relays(() => System.nanoTime() / 1000000)

  /** Those of this JVM. */
  def here: Relays = ofThisJvm

  private def listening(host: String, port: Int): ServerSocketChannel = {
    def at(port: Int) = {
      val listener = ServerSocketChannel.open()
      try listener.bind(new InetSocketAddress(host.stripPrefix("[").stripSuffix("]"), port))
      catch {
        case problem: IOException =>
          listener.close()
          throw problem
      }
    }
    val ports = if (port == 0) Seq(0) else (port until port + Ports).filter(_ < 65536)
    ports.init.iterator.flatMap(port => Try(at(port)).toOption).find(_ => true).getOrElse(at(ports.last))
  }
}
