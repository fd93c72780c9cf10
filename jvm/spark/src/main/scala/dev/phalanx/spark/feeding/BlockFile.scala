package dev.phalanx.spark.feeding

import java.io.IOException
import java.nio.ByteBuffer
import java.nio.channels.{FileChannel, WritableByteChannel}
import java.nio.file.StandardOpenOption.{CREATE_NEW, WRITE}
import java.nio.file.attribute.PosixFilePermissions
import java.nio.file.{Files, Path}
import java.util.zip.CRC32

import scala.util.Try

/** A partition's blocks in a file, one behind the other. As FEED-61 says, only the user can read the folder, unless
  * it is one that is kept, and a task that fails leaves no file.
  */
final private[feeding] class BlockFile private (path: Path, file: FileChannel) extends WritableByteChannel {
  import BlockFile._

  private val sum = new CRC32
  private var start = 0L
  private var at = 0L

  /** Writes bytes of a block. */
  override def write(bytes: ByteBuffer): Int = {
    val count = bytes.remaining
    sum.update(bytes.duplicate())
    append(bytes)
    count
  }

  /** Ends a block: where it starts, how many bytes it has, and their CRC-32. */
  def endBlock(): (Long, Long, Long) = {
    val block = (start, at - start, sum.getValue)
    val gap = ByteBuffer.allocate(((Alignment - at % Alignment) % Alignment).toInt)
    append(gap)
    start = at
    sum.reset()
    block
  }

  private def append(bytes: ByteBuffer): Unit = {
    at += bytes.remaining
    telling(path)(while (bytes.hasRemaining) file.write(bytes): Unit)
  }

  override def isOpen: Boolean = file.isOpen

  override def close(): Unit = file.close()
}

private[feeding] object BlockFile {

  /** Each block begins at such a multiple, so that the numbers in it are aligned in memory. */
  val Alignment = 64

  /** What `write` makes of a new file at `path`. Throws `IOException` where it can't be written. */
  def make[A](path: Path, kept: Boolean)(write: BlockFile => A): A = {
    val ofUser = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rwx------"))
    val file = telling(path) {
      Files.createDirectories(path.getParent, (if (kept) Nil else Seq(ofUser)): _*)
      FileChannel.open(path, CREATE_NEW, WRITE)
    }
    try
      try {
        val made = write(new BlockFile(path, file))
        if (kept) telling(path)(file.force(true)) // it outlasts a loss of power, before an index names it
        made
      } finally file.close()
    catch {
      case problem: Throwable =>
        Try(Files.deleteIfExists(path))
        throw problem
    }
  }

  private def telling[A](path: Path)(write: => A): A =
    try write
    catch {
      case problem: IOException => throw new IOException(s"$path can't be written: ${problem.getMessage}", problem)
    }
}
