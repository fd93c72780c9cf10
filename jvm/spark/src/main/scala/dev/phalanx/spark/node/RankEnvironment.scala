package dev.phalanx.spark.node

import java.io.File

import org.apache.spark.SparkFiles

import dev.phalanx.spark.internal.SparkInternals

/** What a rank has of this machine: the files that Spark shipped, and Spark's own Python modules.
  *
  * JAR-24 (spark-files): `PHALANX_SPARK_FILES` is the folder of Spark's files on this machine.
  *
  * JAR-25 (python-path): PYTHONPATH is that of a PySpark worker. First come Spark's own modules, which are named
  * here. The core puts the application's and the executor's behind them.
  */
private[spark] object RankEnvironment {
  private val SparkFilesVariable = "PHALANX_SPARK_FILES"

  /** Names and values, in turn. */
  def here(
      sparkFiles: => String = SparkFiles.getRootDirectory(),
      sparkPython: => String = SparkInternals.sparkPythonPath
  ): Array[String] = {
    val files = new File(sparkFiles).getAbsoluteFile.toPath.normalize.toString
    Array("PYTHONPATH", sparkPython, SparkFilesVariable, files)
  }
}
