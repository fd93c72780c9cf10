package dev.phalanx.spark.driver

import java.io.ByteArrayOutputStream
import java.nio.charset.StandardCharsets.UTF_8

import dev.phalanx.spark.internal.Json

/** What the ranks execute, as bytes: the format of `python/phalanx/rank/payload.py`, which reads it.
  *
  * The first line names the format and its version, the second is a JSON header, the rest is the body.
  */
private[spark] object Payload {
  private val Format = "phalanx payload 1\n"

  /** A Python file and its arguments. */
  def file(file: TrainFile, args: Seq[String]): Array[Byte] = {
    val what = Json.write(
      "kind" -> "file",
      "results" -> "json",
      "name" -> file.name,
      "path" -> file.path,
      "main" -> file.main,
      "args" -> args
    )
    written(what, file.source)
  }

  /** A Python module by name, run as `python -m` does. */
  def module(name: String, args: Seq[String]): Array[Byte] =
    written(Json.write("kind" -> "module", "results" -> "json", "name" -> name, "args" -> args), Array.emptyByteArray)

  /** For ranks that read none. */
  val none: Array[Byte] = Array.emptyByteArray

  private def written(header: String, body: Array[Byte]): Array[Byte] = {
    val out = new ByteArrayOutputStream(Format.length + header.length + body.length + 16)
    out.write(Format.getBytes(UTF_8))
    out.write(header.getBytes(UTF_8))
    out.write('\n')
    out.write(body)
    out.toByteArray
  }
}
