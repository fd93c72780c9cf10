package dev.phalanx.examples

import java.nio.file.{Files, Path, StandardCopyOption}

import scala.util.Using

import org.apache.spark.sql.SparkSession

import dev.phalanx.spark.{TorchDistributor, TrainingException}

/** Trains by a Python file from a Scala application, on the cluster that `spark-submit` was given:
  *
  * {{{
  * spark-submit --master local[2] --jars phalanx-spark_2.13-VERSION.jar \
  *   --class dev.phalanx.examples.TrainDigits phalanx-examples_2.13-VERSION.jar --ranks=2 --epochs=10
  * }}}
  *
  * `--ranks=N` is how many ranks, `--file=PATH` another training file than the one in this jar, `--local` trains on
  * the driver; all other arguments are the training file's. The last line of its output is rank 0's result; it exits
  * with 1 where the training fails.
  */
object TrainDigits {

  def main(args: Array[String]): Unit = {
    val (own, training) =
      args.toSeq.partition(arg => arg.startsWith("--ranks=") || arg.startsWith("--file=") || arg == "--local")
    def option(name: String) =
      own.collectFirst { case arg if arg.startsWith(s"--$name=") => arg.drop(name.length + 3) }
    val ranks = option("ranks").fold(2)(_.toInt)

    val spark = SparkSession.builder().appName("TrainDigits").getOrCreate()
    val code =
      try {
        val distributor =
          new TorchDistributor(numProcesses = ranks, localMode = own.contains("--local"), useGpu = false)
        val result = option("file") match {
          case Some(file) => distributor.run(file, training: _*)
          case None       => withOwnFile(file => distributor.run(file.toString, training: _*))
        }
        result.ranks.foreach(outcome => println(s"rank ${outcome.rank} on ${outcome.host}: ${outcome.state}"))
        println(s"result: ${result.resultJson.getOrElse("none")}")
        0
      } catch {
        case failure: TrainingException =>
          System.err.println(s"the training failed (${failure.kind}): ${failure.getMessage}")
          1
      } finally spark.stop()
    if (code != 0) sys.exit(code)
  }

  /** The training file of this jar, as a file. */
  private def withOwnFile[A](body: Path => A): A = {
    val folder = Files.createTempDirectory("train-digits-")
    val file = folder.resolve("train_digits.py")
    try {
      Using.resource(getClass.getResourceAsStream("/train_digits.py"))(Files.copy(
        _,
        file,
        StandardCopyOption.REPLACE_EXISTING
      ))
      body(file)
    } finally {
      Files.deleteIfExists(file)
      Files.delete(folder)
    }
  }
}
