package dev.phalanx.spark.driver

import java.io.File

/** What the driver tells about the ranks, wherever they run.
  *
  * @param pyFiles names of Python packages among Spark's files
  * @param localGpus the driver's GPUs, for its own node or for the tasks of a local master
  * @param variables what the caller gives them, names and values in turn; they may be secrets
  */
final private[spark] case class RankOptions(
    program: RankProgram,
    pyFiles: Seq[String],
    localGpus: Seq[String],
    variables: Seq[String] = Nil
) {

  /** The application's variables for them, names and values in turn. */
  def env: Array[String] =
    (Seq(RankOptions.PyFilesVariable, pyFiles.mkString(File.pathSeparator)) ++ variables).toArray

  override def toString: String = s"RankOptions($program)"
}

private[spark] object RankOptions {

  /** Names of Python packages, which are below the folder of Spark's files on each machine. */
  val PyFilesVariable = "PHALANX_PY_FILES"
}

/** What a rank's process runs. The core makes the command line of it, on the machine where the rank runs. */
sealed private[spark] trait RankProgram

private[spark] object RankProgram {

  /** Phalanx's Python entry, by this Python. */
  final case class Python(exec: String) extends RankProgram

  /** A program as it is; its exit code says how it ended. */
  final case class Command(line: Seq[String]) extends RankProgram

  /** The Python of the executors, by PySpark's rules. */
  def pythonOf(conf: String => Option[String], env: String => Option[String] = sys.env.get): String =
    conf("spark.pyspark.python").orElse(env("PYSPARK_PYTHON")).filter(_.nonEmpty).getOrElse("python3")
}
