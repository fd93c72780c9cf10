package dev.phalanx.spark.internal

import java.nio.file.{Files, Path}

/** A folder below Spark's local directory, made when it is first used, and removed when nothing refers to this any
  * more, or with the application.
  */
final private[spark] class TempFolder(prefix: String) {
  lazy val path: Path = {
    val made = Files.createTempDirectory(SparkInternals.localDir.toPath, prefix)
    SparkInternals.deleteAtShutdown(made.toFile)
    OnceUnused(this)(SparkInternals.delete(made.toFile))
    made
  }
}
