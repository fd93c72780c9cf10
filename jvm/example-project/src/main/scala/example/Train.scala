package example

import org.apache.spark.sql.SparkSession

import dev.phalanx.spark.TorchDistributor

/** Trains by the Python file that the first argument names; the others are the file's. */
object Train {
  def main(args: Array[String]): Unit = {
    val spark = SparkSession.builder().appName("Train").getOrCreate()
    try {
      val distributor = new TorchDistributor(numProcesses = 2, localMode = false, useGpu = false)
      val result = distributor.run(args.head, args.tail.toSeq: _*)
      println(s"result: ${result.resultJson.getOrElse("none")}")
    } finally spark.stop()
  }
}
