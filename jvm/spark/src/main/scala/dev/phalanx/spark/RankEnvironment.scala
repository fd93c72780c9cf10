package dev.phalanx.spark

import java.io.File

import org.apache.spark.SparkFiles

/** What Spark's side adds to a rank's environment: the files that Spark shipped, and what a PySpark worker would
  * have.
  *
  * ENV-1: `PHALANX_SPARK_FILES` is the folder of Spark's files on this host, `PHALANX_PY_FILES` the names of Python
  * packages in there. ENV-2: PYTHONPATH is a PySpark worker's: Spark's own modules, the application's, the
  * executor's.
  */
private[spark] object RankEnvironment {
  val SparkFilesVariable = "PHALANX_SPARK_FILES"
  val PyFilesVariable = "PHALANX_PY_FILES"
  private val PythonPath = "PYTHONPATH"

  /** Names and values, in turn. `ofApplication` is the application's environment for Python. */
  def variables(
      ofApplication: Map[String, String],
      pyFiles: Seq[String],
      own: String => Option[String] = sys.env.get,
      sparkFiles: => String = SparkFiles.getRootDirectory(),
      sparkPython: => String = SparkInternals.sparkPythonPath
  ): Array[String] = {
    val path = Seq(sparkPython, ofApplication.getOrElse(PythonPath, ""), own(PythonPath).getOrElse(""))
    val added = Map(
      PythonPath -> path.filter(_.nonEmpty).mkString(File.pathSeparator),
      SparkFilesVariable -> new File(sparkFiles).getAbsoluteFile.toPath.normalize.toString,
      PyFilesVariable -> pyFiles.mkString(File.pathSeparator)
    )
    (ofApplication ++ added).toSeq.sorted.flatMap { case (name, value) => Seq(name, value) }.toArray
  }
}
