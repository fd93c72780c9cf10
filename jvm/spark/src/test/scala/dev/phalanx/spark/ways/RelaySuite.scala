package dev.phalanx.spark.ways

import java.io.{ByteArrayOutputStream, DataInputStream, DataOutputStream}
import java.net.Socket
import java.nio.ByteBuffer
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.{CompletableFuture, ExecutionException, LinkedBlockingQueue, TimeUnit}

import scala.util.{Random, Using}

import org.apache.spark.SparkConf

import dev.phalanx.spark.internal.Version
import dev.phalanx.spark.support.PhalanxSuite

/** A server's relays, with this test as the client and as the tasks. */
class RelaySuite extends PhalanxSuite {
  private val conf = new SparkConf(false).set("spark.driver.host", "127.0.0.1")

  private def command(kind: Char)(fill: DataOutputStream => Unit): Array[Byte] = {
    val bytes = new ByteArrayOutputStream
    val out = new DataOutputStream(bytes)
    out.writeByte(kind.toInt)
    fill(out)
    bytes.toByteArray
  }

  /** A client's session with one relay. */
  private final class Client(relays: Relays, owner: String = "user/session", patienceMillis: Int = 60000) {
    private val messages = new LinkedBlockingQueue[Array[Byte]]
    private var number = 0L
    var awaited = 0L

    def open(version: String = Version.phalanx): CompletableFuture[Void] = CompletableFuture.runAsync { () =>
      val opening = command('O') { out =>
        out.writeUTF(version)
        out.writeUTF("relay")
        out.writeLong(awaited)
        out.writeInt(patienceMillis)
        out.writeInt(0)
      }
      relays.process(opening, owner, conf, messages.put(_))
    }

    def send(frames: RelayWire.Frame*): Unit = {
      number += 1
      repeat(frames: _*)
    }

    /** The last command again. */
    def repeat(frames: RelayWire.Frame*): Unit = {
      val sending = command('S') { out =>
        out.writeUTF("relay")
        out.writeLong(number)
        out.writeLong(awaited)
        out.writeInt(0)
        out.write(RelayWire.message(0, frames).drop(8))
      }
      relays.process(sending, owner, conf, _ => ())
    }

    def close(): Unit = relays.process(command('C')(_.writeUTF("relay")), owner, conf, _ => ())

    /** The next message's number and frames. */
    def next(): (Long, Seq[RelayWire.Frame]) = {
      val message = messages.poll(20, TimeUnit.SECONDS)
      val in = new DataInputStream(new java.io.ByteArrayInputStream(message))
      val number = in.readLong()
      val frames = Iterator.continually(in).takeWhile(_.available > 0).map { in =>
        RelayWire.Frame(in.readByte(), in.readInt(), { val n = in.readInt(); in.readNBytes(n) })
      }
      number -> frames.toList
    }

    /** What comes over a connection until there are so many bytes. */
    def data(count: Int): Array[Byte] = {
      val bytes = ByteBuffer.allocate(count)
      while (bytes.hasRemaining) {
        val (number, frames) = next()
        frames.filter(_.kind == RelayWire.Data).foreach(frame => bytes.put(frame.bytes))
        awaited = number + 1
      }
      bytes.array
    }

    def connected(): Socket = {
      val address = new String(next()._2.head.bytes, "UTF-8")
      val task = new Socket("127.0.0.1", address.split(':').last.toInt)
      awaited = next()._1 + 1 // the relay has it
      task
    }
  }

  private def frame(kind: Byte, bytes: Array[Byte]) = RelayWire.Frame(kind, 1, bytes)

  private def problem(body: => Unit): String = intercept[IllegalArgumentException](body).getMessage

  test("bytes go both ways, and a relay ends with its client's word") {
    val client = new Client(new Relays(() => 0))
    val stream = client.open()
    Using.resource(client.connected()) { task =>
      task.getOutputStream.write(Array[Byte](1, 2, 3))
      assert(client.data(3).toSeq == Seq[Byte](1, 2, 3))
      client.send(frame(RelayWire.Data, Array[Byte](4, 5)))
      client.repeat(frame(RelayWire.Data, Array[Byte](4, 5)))
      client.send(frame(RelayWire.Ended, Array.empty))
      assert(task.getInputStream.readAllBytes.toSeq == Seq[Byte](4, 5), "WAY-1: what comes twice is done once")
    }
    client.close()
    stream.get(20, TimeUnit.SECONDS): Unit
  }

  test("what a client has not had comes again when it opens its relay again") {
    val client = new Client(new Relays(() => 0))
    val before = client.open()
    Using.resource(client.connected()) { task =>
      task.getOutputStream.write(Array[Byte](7))
      client.next(): Unit // on its way when the connection broke
      val after = client.open()
      before.get(20, TimeUnit.SECONDS)
      assert(client.data(1).toSeq == Seq[Byte](7), "WAY-1")
      task.getOutputStream.write(Array[Byte](8))
      assert(client.data(1).toSeq == Seq[Byte](8), "WAY-4: the relay goes on")
      client.close()
      after.get(20, TimeUnit.SECONDS): Unit
    }
  }

  test("another session, and another version, get no relay of a client's") {
    val relays = new Relays(() => 0)
    val (client, stranger) = (new Client(relays), new Client(relays, owner = "user/another"))
    val stream = client.open()
    Using.resource(client.connected()) { _ =>
      assert(problem(stranger.send()).contains("no such relay"), "WAY-5")
      val refused = intercept[ExecutionException](client.open("0.0.0").get(20, TimeUnit.SECONDS)).getCause
      assert(refused.getMessage.contains("version"))
      assert(problem(relays.process(Array(1), "user/session", conf, _ => ())).contains("not a Phalanx command"))
    }
    client.close()
    stream.get(20, TimeUnit.SECONDS): Unit
  }

  test("what a silent client doesn't take stays in the task, and a client that stays silent is gone") {
    val clock = new AtomicLong
    val client = new Client(new Relays(() => clock.get), patienceMillis = 9000)
    val stream = client.open()
    Using.resource(client.connected()) { task =>
      client.send(frame(RelayWire.Data, Array.empty)) // the hub answers
      val writing = CompletableFuture.runAsync { () =>
        try task.getOutputStream.write(Random.nextBytes(64 << 20))
        catch { case _: java.io.IOException => () }
      }
      val there = client.data(Relay.ConnectionBytes.toInt)
      assert(there.length == Relay.ConnectionBytes && !writing.isDone, "WAY-2")
      clock.set(9500)
      stream.get(20, TimeUnit.SECONDS)
      writing.get(20, TimeUnit.SECONDS)
      assert(problem(client.send()).contains("no such relay"), "WAY-4")
    }
  }

  test("of a connection that the hub doesn't answer little is read, and it doesn't stay") {
    val clock = new AtomicLong
    val client = new Client(new Relays(() => clock.get))
    val stream = client.open()
    Using.resource(client.connected()) { task =>
      task.getOutputStream.write(new Array[Byte](Relay.UnansweredBytes.toInt + 1000))
      assert(client.data(Relay.UnansweredBytes.toInt).length == Relay.UnansweredBytes)
      clock.set(Relay.UnansweredMillis + 1)
      assert(client.next()._2.map(_.kind) == Seq(RelayWire.Ended), "WAY-3")
    }
    client.close()
    stream.get(20, TimeUnit.SECONDS): Unit
  }
}
