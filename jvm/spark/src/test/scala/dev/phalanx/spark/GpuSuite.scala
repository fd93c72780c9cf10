package dev.phalanx.spark

import java.nio.file.{Files, Path}

import org.apache.spark.sql.SparkSession

import dev.phalanx.spark.support.{ChildJvm, PhalanxSuite}

/** A rank with a GPU, on a cluster whose worker says that it has one: `GpuMain DISCOVERY-SCRIPT`. */
final class GpuMain

object GpuMain {

  def main(args: Array[String]): Unit = {
    val session = SparkSession
      .builder()
      .master("local-cluster[1,1,512]")
      .config("spark.ui.enabled", "false")
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.executor.memory", "512m")
      .config(ChildJvm.ofExecutors)
      .config("spark.worker.resource.gpu.amount", "1")
      .config("spark.worker.resource.gpu.discoveryScript", args(0))
      .config("spark.executor.resource.gpu.amount", "1")
      .config("spark.task.resource.gpu.amount", "1")
      .getOrCreate()
    try {
      val distributor = new TorchDistributor(numProcesses = 1, localMode = false, useGpu = true)
      println(distributor.runProgram(Seq("/bin/sh", "-c", "echo sees $CUDA_VISIBLE_DEVICES")).ranks)
    } finally session.stop()
  }
}

class GpuSuite extends PhalanxSuite {

  test("a rank sees the GPU that Spark gave its task") {
    withFolder { folder =>
      val script: Path = folder.resolve("discover")
      Files.writeString(script, "#!/bin/sh\necho '{\"name\": \"gpu\", \"addresses\": [\"MIG-1c2d\"]}'\n")
      assert(script.toFile.setExecutable(true))
      val ended = ChildJvm.run(classOf[GpuMain].getName, Seq(script.toString))
      assert(ended.code == 0, ended.output)
      assert(ended.output.contains("[rank 0] sees MIG-1c2d"), ended.output)
    }
  }
}
