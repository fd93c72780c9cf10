package dev.phalanx.spark.driver

import org.apache.spark.SparkContext

/** The Python files and packages of `--py-files` (`spark.submit.pyFiles`), as PySpark has them for its workers. */
private[spark] object PyFiles {
  private val Packages = Seq(".zip", ".egg", ".jar")

  /** Ships those that Spark has not shipped yet; returns the names of packages, which go on the ranks' path. */
  def shipped(sc: SparkContext): Seq[String] = {
    val paths = sc.getConf.get("spark.submit.pyFiles", "").split(',').map(_.trim).filter(_.nonEmpty).toVector
    val there = sc.listFiles().map(nameOf).toSet
    paths.filterNot(path => there(nameOf(path))).foreach(path => sc.addFile(path))
    paths.map(nameOf).filter(name => Packages.exists(name.toLowerCase.endsWith))
  }

  private def nameOf(path: String): String = path.substring(path.lastIndexOf('/') + 1)
}
