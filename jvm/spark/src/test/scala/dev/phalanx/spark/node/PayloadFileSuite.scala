package dev.phalanx.spark.node

import java.io.{
  DataInputStream,
  DataOutputStream,
  OutputStream,
  PipedInputStream,
  PipedOutputStream,
  RandomAccessFile
}
import java.nio.ByteBuffer
import java.nio.file.Files

import scala.util.Using

import dev.phalanx.spark.support.Cluster.Going
import dev.phalanx.spark.support.PhalanxSuite

class PayloadFileSuite extends PhalanxSuite {

  test("a payload arrives as the file that it was, in pieces") {
    withFolder { folder =>
      val bytes = Array.tabulate(1 << 20)(place => (place * 31 + place / 256).toByte)
      val sent = new PayloadFile(Files.write(folder.resolve("payload"), bytes).toString)
      val pipe = new PipedInputStream(1000)
      val out = new DataOutputStream(new PipedOutputStream(pipe))
      val sending = new Going({
        sent.write(out)
        out.close()
      })
      val arrived = new PayloadFile
      arrived.readFields(new DataInputStream(pipe))
      assert(sending.end().isSuccess && arrived.file != sent.file)
      assert(Files.readAllBytes(arrived.file).sameElements(bytes), "JAR-22")
    }
  }

  test("a payload beyond what an array or an Int can count is sent whole") {
    withFolder { folder =>
      val size = (1L << 31) + (1L << 20)
      val file = folder.resolve("payload")
      Using.resource(new RandomAccessFile(file.toFile, "rw"))(_.setLength(size)) // no block of it is on the disk
      val counted = new Counting
      new PayloadFile(file.toString).write(new DataOutputStream(counted))
      assert(counted.said == size && counted.bytes == 8 + size, "JAR-22")
    }
  }

  /** Counts bytes, and keeps the number that the first eight are. */
  final private class Counting extends OutputStream {
    private val first = ByteBuffer.allocate(8)
    var bytes = 0L

    def said: Long = first.getLong(0)

    override def write(byte: Int): Unit = write(Array(byte.toByte), 0, 1)

    override def write(from: Array[Byte], at: Int, count: Int): Unit = {
      first.put(from, at, count.min(first.remaining))
      bytes += count
    }
  }
}
