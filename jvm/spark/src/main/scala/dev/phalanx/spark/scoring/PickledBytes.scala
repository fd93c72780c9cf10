package dev.phalanx.spark.scoring

import java.io.{BufferedInputStream, DataInputStream, IOException}
import java.nio.file.{Files, Path}

import scala.util.Using

/** Python's `bytes` in a pickle, as PySpark writes a broadcast of them. The opcodes are those of Python's
  * `Lib/pickletools.py`; nothing else is read, and nothing is executed.
  */
private[scoring] object PickledBytes {
  private val Protocol = 0x80
  private val Frame = 0x95
  private val ShortBytes = 'C'.toInt
  private val Bytes = 'B'.toInt
  private val LongBytes = 0x8e

  /** Writes the bytes in the pickle at `from` to `to`. Throws `IOException` where there are none. */
  def copy(from: Path, to: Path): Unit =
    Using.resource(new DataInputStream(new BufferedInputStream(Files.newInputStream(from)))) { in =>
      var left = lengthIn(in)
      val buffer = new Array[Byte](64 << 10)
      Using.resource(Files.newOutputStream(to)) { out =>
        while (left > 0) {
          val piece = left.min(buffer.length.toLong).toInt
          in.readFully(buffer, 0, piece)
          out.write(buffer, 0, piece)
          left -= piece
        }
      }
    }

  /** How many bytes follow. */
  private def lengthIn(in: DataInputStream): Long = in.readUnsignedByte() match {
    case Protocol   => in.readUnsignedByte(); lengthIn(in)
    case Frame      => in.readLong(); lengthIn(in)
    case ShortBytes => in.readUnsignedByte().toLong
    case Bytes      => Integer.toUnsignedLong(Integer.reverseBytes(in.readInt()))
    case LongBytes  => java.lang.Long.reverseBytes(in.readLong())
    case other      => throw new IOException(s"a broadcast is no bytes of Python's: it has the opcode $other")
  }
}
