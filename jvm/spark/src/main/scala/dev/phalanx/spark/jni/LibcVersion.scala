package dev.phalanx.spark.jni

import java.nio.charset.StandardCharsets.ISO_8859_1
import java.nio.file.{Files, Path, Paths}

import scala.util.control.NonFatal

/** Which C library this process has. It is the most frequent reason why a native library doesn't load. */
private[spark] object LibcVersion {
  private val release = """GNU C Library[^\n\x00]* version (\d+\.\d+)""".r

  /** `glibc 2.36`, `musl`, or that it isn't known. */
  def describe(maps: Path = Paths.get("/proc/self/maps")): String =
    try {
      val mapped = Files.readString(maps, ISO_8859_1).linesIterator.map(_.split(" ").last).toSet
      val glibc = mapped.find(path => path.endsWith("/libc.so.6") || path.matches(".*/libc-2\\.\\d+\\.so"))
      glibc match {
        case Some(path) =>
          val text = new String(Files.readAllBytes(Paths.get(path)), ISO_8859_1)
          "glibc " + release.findFirstMatchIn(text).fold("of an unknown version")(_.group(1))
        case None if mapped.exists(_.contains("musl")) => "musl"
        case None                                      => "an unknown C library"
      }
    } catch { case NonFatal(_) => "an unknown C library" }
}
