package dev.phalanx.spark.internal

import java.nio.file.{Path, Paths}

/** The folders of this JVM in which files can be made that are then executed: some hosts mount `/tmp`, some others
  * Spark's disks so that nothing may be (`noexec`).
  */
private[spark] object ExecutableFolders {

  /** Those to try, in order: `first`, then the folder for temporary files, then Spark's local directories. */
  def all(first: Seq[Path]): Seq[Path] = {
    val temporary = Paths.get(sys.props("java.io.tmpdir"))
    (first ++ Seq(temporary) ++ SparkInternals.localDirs.map(Paths.get(_))).map(_.toAbsolutePath.normalize).distinct
  }
}
