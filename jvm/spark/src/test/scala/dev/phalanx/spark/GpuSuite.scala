package dev.phalanx.spark

import java.nio.file.{Files, Path}

import scala.util.Try

import org.apache.spark.TaskContext
import org.apache.spark.sql.SparkSession

import dev.phalanx.spark.support.{ChildJvm, PhalanxSuite}

/** A rank with a GPU, on a cluster whose worker says that it has one: `GpuMain DISCOVERY-SCRIPT AMOUNT`. Where a task
  * takes a part of it, ranks are to have all of it and both cores.
  */
final class GpuMain

object GpuMain {
  private val Sees = Seq("/bin/sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES with $OMP_NUM_THREADS")

  def main(args: Array[String]): Unit = {
    val session = SparkSession
      .builder()
      .master("local-cluster[1,2,512]")
      .config("spark.ui.enabled", "false")
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.executor.memory", "512m")
      .config(ChildJvm.ofExecutors)
      .config("spark.worker.resource.gpu.amount", "1")
      .config("spark.worker.resource.gpu.discoveryScript", args(0))
      .config("spark.executor.resource.gpu.amount", "1")
      .config("spark.task.resource.gpu.amount", args(1))
      .getOrCreate()
    try {
      val distributor = new TorchDistributor(numProcesses = 1, localMode = false, useGpu = true)
      if (args(1) == "1") println(distributor.runProgram(Sees).ranks)
      else {
        val shared = session.sparkContext.parallelize(0 until 2, 2).map(_ => TaskContext.get().resources()("gpu"))
        println(shared.map(_.addresses.mkString).collect().mkString("shared by ", " and ", ""))
        println(Try(distributor.runProgram(Sees)).failed.get.getMessage)
        val whole = distributor.withGpusPerRank(1).withTaskCpus(2)
        Seq("barrier", "tasks").foreach(gang => println(whole.withGang(gang).runProgram(Sees).ranks))
        println(Try(whole.withTaskCpus(3).runProgram(Sees)).failed.get.getMessage)
      }
    } finally session.stop()
  }
}

class GpuSuite extends PhalanxSuite {

  private def outputOf(amount: String): String = withFolder { folder =>
    val script: Path = folder.resolve("discover")
    Files.writeString(script, "#!/bin/sh\necho '{\"name\": \"gpu\", \"addresses\": [\"MIG-1c2d\"]}'\n")
    assert(script.toFile.setExecutable(true))
    val ended = ChildJvm.run(classOf[GpuMain].getName, Seq(script.toString, amount))
    assert(ended.code == 0, ended.output)
    ended.output
  }

  test("a rank sees the GPU that Spark gave its task") {
    val output = outputOf("1")
    assert(output.contains("[rank 0] sees MIG-1c2d with 1"), output)
  }

  test("JOB-27: a rank has a whole GPU and its task's cores where other tasks share the GPU") {
    val output = outputOf("0.5")
    assert(output.contains("shared by MIG-1c2d and MIG-1c2d"), output)
    assert(output.contains("but a rank needs a GPU of its own; set spark.phalanx.gpusPerRank to 1 or more."), output)
    assert(output.linesIterator.count(_.contains("[rank 0] sees MIG-1c2d with 2")) == 2, output)
    assert(output.contains("each task of the run takes 3 cores, but an executor has 2;"), output)
  }
}
