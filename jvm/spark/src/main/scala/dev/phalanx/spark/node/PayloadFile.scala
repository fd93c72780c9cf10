package dev.phalanx.spark.node

import java.io.{DataInput, DataOutput}
import java.nio.file.{Files, Path, Paths}

import scala.util.Using

import org.apache.hadoop.io.Writable

import dev.phalanx.spark.internal.TempFolder

/** A payload that is too large for a stage's closure: a file at the driver, broadcast to the executors in pieces.
  * There it is a file again, until nothing refers to this object.
  *
  * JAR-22 (any-size): it is nowhere one array.
  *
  * JAR-23 (any-serializer): it travels as Hadoop's `Writable`, in Spark's `SerializableWritable`. Kryo knows that,
  * also where every class has to be registered.
  *
  * @param path the file at the driver, which has to stay there until the stage is over
  */
final private[spark] class PayloadFile(private var path: String) extends Writable {
  private val arrived = new TempFolder("phalanx-payload-")

  /** For `Writable`. */
  def this() = this(null)

  /** Where it is on this machine. */
  def file: Path = Paths.get(path)

  override def write(out: DataOutput): Unit = {
    val buffer = new Array[Byte](PayloadFile.PieceBytes)
    out.writeLong(Files.size(file))
    Using.resource(Files.newInputStream(file)) { in =>
      Iterator.continually(in.read(buffer)).takeWhile(_ >= 0).foreach(out.write(buffer, 0, _))
    }
  }

  override def readFields(in: DataInput): Unit = {
    val buffer = new Array[Byte](PayloadFile.PieceBytes)
    val target = arrived.path.resolve("payload")
    var left = in.readLong()
    Using.resource(Files.newOutputStream(target)) { out =>
      while (left > 0) {
        val piece = left.min(buffer.length.toLong).toInt
        in.readFully(buffer, 0, piece)
        out.write(buffer, 0, piece)
        left -= piece
      }
    }
    path = target.toString
  }
}

private object PayloadFile {
  val PieceBytes: Int = 64 << 10
}
