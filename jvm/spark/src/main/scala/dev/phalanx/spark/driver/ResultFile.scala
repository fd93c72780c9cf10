package dev.phalanx.spark.driver

import java.io.{EOFException, File, FileInputStream, FileNotFoundException, InputStream}
import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Using

/** A rank's result in a file of the driver's: a line with its kind, then the result itself. A program leaves bytes of
  * any form, without that line.
  *
  * JAR-10 (one-copy): a small result is held in memory, and outlives the file; a large one is only read when it is
  * asked for, into one array or none.
  *
  * @param kind `bytes`, `json`, or `unavailable` with the reason
  * @param from where in the file the result begins
  * @param size its bytes
  */
final private[spark] class ResultFile private (
    path: String,
    val kind: String,
    from: Int,
    val size: Long,
    small: Option[Array[Byte]]
) extends Serializable {

  /** Its bytes; throws `IllegalStateException` where no array can hold them. */
  def bytes: Array[Byte] = small.getOrElse {
    if (size > ResultFile.MostInArray)
      throw new IllegalStateException(s"a result of $size bytes is too large for an array; read its stream")
    Using.resource(stream())(ResultFile.read(_, size.toInt))
  }

  def text: String = new String(bytes, UTF_8)

  /** Its bytes, as they are read; the caller closes it. */
  def stream(): InputStream = small match {
    case Some(all) => new java.io.ByteArrayInputStream(all)
    case None      =>
      val in = ResultFile.open(path)
      in.skipNBytes(from.toLong)
      in
  }
}

private[spark] object ResultFile {

  /** The largest result that is held in memory. */
  private val SmallBytes = 1 << 20
  private val ChunkBytes = 1 << 20 // FileInputStream has a buffer of its own, as large as what it is asked for
  private val MostInArray = Int.MaxValue - 8L
  private val Kinds = Seq("json", "bytes", "unavailable")

  /** Looks at a file; throws `IllegalStateException` where it went with the application. */
  def at(path: String): ResultFile = Using.resource(open(path)) { in =>
    val length = new File(path).length
    val begin = read(in, length.min(Kinds.map(_.length).max + 1L).toInt)
    val kind = Kinds.find(kind => begin.startsWith(s"$kind\n".getBytes(UTF_8)))
    val from = kind.fold(0)(_.length + 1)
    val size = length - from
    val small =
      if (size > SmallBytes) None
      else Some(begin.drop(from) ++ read(in, (length - begin.length).toInt))
    new ResultFile(path, kind.getOrElse("bytes"), from, size, small)
  }

  private def open(path: String): InputStream =
    try new FileInputStream(path)
    catch {
      case problem: FileNotFoundException if !new File(path).exists =>
        val why = "the results were removed when the Spark application stopped; read them before it stops"
        throw new IllegalStateException(why, problem)
    }

  private def read(in: InputStream, size: Int): Array[Byte] = {
    val all = new Array[Byte](size)
    var done = 0
    while (done < size) {
      val now = in.read(all, done, math.min(size - done, ChunkBytes))
      if (now < 0) throw new EOFException(s"the file of a result became shorter: $done bytes of $size")
      done += now
    }
    all
  }
}
