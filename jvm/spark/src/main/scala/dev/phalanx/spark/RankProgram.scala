package dev.phalanx.spark

/** What a rank's process runs: Phalanx's Python entry, or a program of the user's. */
sealed private[spark] trait RankProgram extends Serializable {

  /** The command line, in the JVM that starts it. */
  def command(home: NodeHome): Array[String]

  /** That of a warm pool for such ranks; empty if there can't be one. */
  def pool(home: NodeHome): Array[String]
}

private[spark] object RankProgram {

  /** `phalanx.rank` of this jar's own Python package, by this Python.
    *
    * The package is imported whole from the jar's folder, whatever other Phalanx is installed there, and the folder
    * then goes to the end of the path: it shadows no module of the user's.
    */
  final case class Python(exec: String) extends RankProgram {
    override def command(home: NodeHome): Array[String] = Array(exec, "-c", boot("rank"), home.python)
    override def pool(home: NodeHome): Array[String] = Array(exec, "-c", boot("pool"), home.python)
  }

  /** A program as it is; its exit code says how it ended. */
  final case class Native(line: Seq[String]) extends RankProgram {
    override def command(home: NodeHome): Array[String] = line.toArray
    override def pool(home: NodeHome): Array[String] = Array.empty
  }

  private def boot(module: String) = Seq(
    "import sys",
    "home = sys.argv.pop()",
    "sys.path[:] = [home] + [p for p in sys.path if p]",
    s"import phalanx.$module",
    "sys.path.append(sys.path.pop(0))",
    s"phalanx.$module.main()"
  ).mkString("; ")

  /** The Python of the executors, by PySpark's rules. */
  def pythonOf(conf: String => Option[String], env: String => Option[String] = sys.env.get): String =
    conf("spark.pyspark.python").orElse(env("PYSPARK_PYTHON")).filter(_.nonEmpty).getOrElse("python3")
}
