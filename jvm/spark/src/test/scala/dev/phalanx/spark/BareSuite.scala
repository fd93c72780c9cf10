package dev.phalanx.spark

import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

/** An application on `local[2]`: `BareMain plugin|bare PROGRAM...`. */
final class BareMain

object BareMain {

  def main(args: Array[String]): Unit = {
    val said = Logged.by("dev.phalanx") {
      try run(args)
      catch {
        case problem: Throwable =>
          println(s"ENDED ${problem.getMessage}")
          sys.exit(1)
      }
    }
    said.foreach(println)
  }

  private def run(args: Array[String]): Unit = {
    val builder = SparkSession.builder().master("local[2]").config("spark.ui.enabled", "false")
    if (args.head == "plugin") builder.config("spark.plugins", classOf[PhalanxPlugin].getName)
    val session = builder.getOrCreate()
    try
      if (args.length > 1) {
        val distributor = new TorchDistributor(numProcesses = 2, localMode = false, useGpu = false)
        println(distributor.runProgram(args.toSeq.tail).ranks)
      }
    finally session.stop()
    LoggerFactory.getLogger("dev.phalanx").info(s"${LiveNodes.count} nodes are left")
  }
}

/** Without the plugin, and where the native library is missing. */
class BareSuite extends PhalanxSuite {

  test("without the plugin everything works on a local master") {
    val ended = ChildJvm.run(classOf[BareMain].getName, Seq("bare", "/bin/sh", "-c", "echo hello"))
    assert(ended.code == 0, ended.output)
    assert(ended.output.contains("[rank 1] hello") && ended.output.contains("0 nodes are left"), ended.output)
  }

  test("a jar without the native library fails every call with the same sentence") {
    withFolder { folder =>
      // the classes without the native resources
      val own = java.nio.file.Paths.get(classOf[Native].getProtectionDomain.getCodeSource.getLocation.toURI)
      val copy = folder.resolve("dev")
      val files = java.nio.file.Files.walk(own.resolve("dev"))
      try
        files.forEach { file =>
          java.nio.file.Files.copy(file, copy.resolve(own.resolve("dev").relativize(file).toString)): Unit
        }
      finally files.close()
      val classPath = sys.props("java.class.path").replace(own.toString, folder.toString)
      val ended = ChildJvm.run(classOf[BareMain].getName, Seq("bare", "/bin/true"), classPath = classPath)
      assert(ended.code == 1)
      assert(
        ended.output.contains("ENDED Phalanx's native library can't be loaded on linux/") && ended.output
          .contains("the jar has no native/linux/"),
        ended.output
      )
    }
  }
}
