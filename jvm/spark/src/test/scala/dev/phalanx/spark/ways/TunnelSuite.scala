package dev.phalanx.spark.ways

import java.io.IOException
import java.net.{InetAddress, InetSocketAddress, ServerSocket, Socket}
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.{CompletableFuture, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.{Random, Using}

import dev.phalanx.spark.support.PhalanxSuite

/** Both ends of tunnels, with a server in the hub's place. What goes between them is serialized, as by Spark. */
class TunnelSuite extends PhalanxSuite {

  /** A hub that listens, the driver's ends of a job's tunnels, and an executor's. */
  private final class Laid extends AutoCloseable {
    val clock = new AtomicLong
    val turns = new AtomicLong
    val hub = new ServerSocket(0, 50, InetAddress.getLoopbackAddress)
    private val exits = new TunnelExits(() => clock.get)
    val entrance = new TunnelEntrance("job", ask(_))

    def ask(turn: TunnelTurn): TunnelAnswer = {
      turns.incrementAndGet()
      val arrived = TunnelTurn.unpack(PhalanxSuite.travelled(turn.packed)).get
      TunnelAnswer.unpack(PhalanxSuite.travelled(exits.answer(arrived).packed))
    }

    /** Runs `body` while the stage of the job runs. */
    def serving[T](body: => T): T =
      exits.servingWhile("job", new InetSocketAddress(hub.getInetAddress, hub.getLocalPort))(body)

    def connect(): Socket = socketTo(entrance)

    override def close(): Unit = {
      entrance.close()
      hub.close()
    }
  }

  private def socketTo(entrance: TunnelEntrance): Socket = {
    val colon = entrance.address.lastIndexOf(':')
    new Socket(entrance.address.take(colon), entrance.address.drop(colon + 1).toInt)
  }

  private def laid[T](body: Laid => T): T = Using.resource(new Laid)(body)

  private def inThread[T](body: => T): CompletableFuture[T] = CompletableFuture.supplyAsync(() => body)

  test("bytes go both ways at once, whole and in order, to a slow reader, too") {
    val (up, down) = (Random.nextBytes(8 << 20), Random.nextBytes(8 << 20))
    laid(tunnel =>
      tunnel.serving {
        Using.resources(tunnel.connect(), tunnel.hub.accept()) { (node, hub) =>
          val sent = Seq(node -> up, hub -> down).map { case (socket, bytes) =>
            inThread(socket.getOutputStream.write(bytes))
          }
          val atHub = inThread(hub.getInputStream.readNBytes(up.length))
          val slow = node.getInputStream.readNBytes(1 << 20)
          // The driver holds no more of it meanwhile than the sockets do.
          val before = tunnel.turns.get
          eventually(assert(tunnel.turns.get > before))
          val atNode = slow ++ node.getInputStream.readNBytes(down.length - slow.length)
          assert(atHub.get(60, TimeUnit.SECONDS).sameElements(up))
          assert(atNode.sameElements(down))
          sent.foreach(_.get(60, TimeUnit.SECONDS))
        }
      }
    )
  }

  test("who closes a connection closes it at the other end, after the last byte") {
    laid(tunnel =>
      tunnel.serving {
        Using.resource(tunnel.connect()) { node =>
          val hub = tunnel.hub.accept()
          node.getOutputStream.write(7)
          node.close()
          assert(hub.getInputStream.readAllBytes().toSeq == Seq[Byte](7))
          hub.close()
        }
        Using.resource(tunnel.connect()) { node =>
          val hub = tunnel.hub.accept()
          hub.getOutputStream.write(8)
          hub.close()
          assert(node.getInputStream.readAllBytes().toSeq == Seq[Byte](8))
        }
      }
    )
  }

  test("there is a way only to the hub of a job whose stage runs, and only as long") {
    laid { tunnel =>
      Using.resource(tunnel.connect())(node => assert(node.getInputStream.read() == -1, "WAY-8"))
      val node = tunnel.serving {
        val node = tunnel.connect()
        val hub = tunnel.hub.accept()
        hub.getOutputStream.write(1)
        assert(node.getInputStream.read() == 1)
        val stranger = TunnelTurn("another job", "its connection", Array[Byte](1), isOver = false)
        assert(tunnel.ask(stranger).isOver, "WAY-8")
        node
      }
      assert(node.getInputStream.read() == -1, "WAY-9")
      node.close()
    }
  }

  test("connections of an executor that is gone are closed") {
    laid(tunnel =>
      tunnel.serving {
        def turn(connection: String) = TunnelTurn("job", connection, Array.empty, isOver = false)
        assert(!tunnel.ask(turn("a")).isOver)
        val hub = tunnel.hub.accept()
        tunnel.clock.addAndGet(TunnelExits.IdleMillis + 1)
        assert(!tunnel.ask(turn("b")).isOver)
        assert(hub.getInputStream.read() == -1, "WAY-9")
        hub.close()
      }
    )
  }

  test("a connection on which nothing moves costs few turns, and wakes up at once") {
    laid(tunnel =>
      tunnel.serving {
        Using.resources(tunnel.connect(), tunnel.hub.accept()) { (node, hub) =>
          // Each pause is twice the one before it.
          val turnsUntilIdle = 20
          eventually(assert(tunnel.turns.get > turnsUntilIdle))
          val (before, began) = (tunnel.turns.get, System.nanoTime())
          eventually(assert(tunnel.turns.get > before + 2))
          val millis = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - began)
          assert(millis >= TunnelEntrance.LongestPauseMillis, "WAY-7")
          node.getOutputStream.write(5)
          assert(hub.getInputStream.read() == 5)
        }
      }
    )
  }

  test("what travels needs no class of the jar to be read") {
    val turn = TunnelTurn("job", "connection", Array[Byte](1), isOver = false)
    val answer = TunnelAnswer(7, Array[Byte](2), isOver = true)
    def classes(packed: Array[AnyRef]) = packed.map(_.getClass).map(c => if (c.isArray) c.getComponentType else c)
    val used = classes(turn.packed) ++ classes(answer.packed)
    assert(used.forall(c => c.isPrimitive || c.getName.startsWith("java.")), "WAY-10")
    assert(TunnelTurn.unpack("another message").isEmpty)
    intercept[IllegalArgumentException](TunnelAnswer.unpack(null))
  }

  test("an entrance that is closed leaves no thread, port or connection, whatever the driver does") {
    val hangs = new CompletableFuture[TunnelAnswer]
    val entrance = new TunnelEntrance("job", _ => hangs.get())
    val node = socketTo(entrance)
    def threads = Thread.getAllStackTraces.keySet.asScala.map(_.getName).filter(_.startsWith("phalanx-tunnel"))
    eventually(assert(threads.size == 2))
    entrance.close()
    eventually(assert(threads.isEmpty))
    assert(node.getInputStream.read() == -1)
    node.close()
    intercept[IOException](socketTo(entrance))
  }
}
