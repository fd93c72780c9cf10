package dev.phalanx.spark

import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

/** An application on `local[2]`: `BareMain plugin|bare|stop PROGRAM...`; `stop` stops Spark while the program runs. */
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
    if (args.head != "bare") builder.config("spark.plugins", classOf[PhalanxPlugin].getName)
    val session = builder.getOrCreate()
    def train() = new TorchDistributor(2, localMode = false, useGpu = false).runProgram(args.toSeq.tail)
    try
      if (args.head == "stop") stopDuring(session, train())
      else if (args.length > 1) println(train().ranks)
    finally session.stop()
    LoggerFactory.getLogger("dev.phalanx").info(s"${LiveNodes.count} nodes are left")
  }

  private def stopDuring(session: SparkSession, training: => Any): Unit = {
    val going = new Cluster.Going(training)
    while (PhalanxSuite.guards.length < 2) Thread.sleep(10)
    session.stop()
    println(s"${PhalanxSuite.guards.length} guards are left")
    println(s"ENDED ${going.end().failed.get.getMessage}")
  }
}

/** Without the plugin, at Ctrl-C, and where the native library is missing. */
class BareSuite extends PhalanxSuite {

  test("without the plugin everything works on a local master") {
    val ended = ChildJvm.run(classOf[BareMain].getName, Seq("bare", "/bin/sh", "-c", "echo hello"))
    assert(ended.code == 0, ended.output)
    assert(ended.output.contains("[rank 1] hello") && ended.output.contains("0 nodes are left"), ended.output)
  }

  Seq("INT", "TERM").foreach { signal =>
    test(s"a driver that gets SIG$signal says so, and its ranks are gone before it is") {
      val program = Seq("bare", "/bin/sh", "-c", "echo up; exec sleep 300")
      val options = Seq("-Dspark.phalanx.grace=1s")
      val ended =
        ChildJvm.run(
          classOf[BareMain].getName,
          program,
          options,
          signalAt = "[rank 1] up",
          signal = signal,
          seconds = 60
        )
      assert(ended.output.contains("sh was cancelled: the driver was asked to end"), s"RUN-4: ${ended.output}")
      assert(ended.output.contains("its ranks are gone"), s"RUN-4: ${ended.output}")
    }
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
