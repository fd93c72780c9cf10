package dev.phalanx.spark.plugin

import java.nio.file.Files

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

import dev.phalanx.spark.driver.{Hub, Job, RankOptions, RankProgram}
import dev.phalanx.spark.jni.Native
import dev.phalanx.spark.node.LiveNodes
import dev.phalanx.spark.support.Cluster.Going
import dev.phalanx.spark.support.{ChildJvm, Logged, PhalanxSuite}
import dev.phalanx.spark.{BarrierRunner, PhalanxPlugin, TorchDistributor}

/** An application on `local[2]`: `BareMain plugin|bare|stop|file PROGRAM...`; `stop` stops Spark while the program
  * runs, `file` has a payload that comes as a file.
  */
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
      else if (args.head == "file") fromFile(session, args.toSeq.tail)
      else if (args.length > 1) println(train().ranks)
    finally session.stop()
    LoggerFactory.getLogger("dev.phalanx").info(s"${LiveNodes.count} nodes are left")
  }

  private def fromFile(session: SparkSession, program: Seq[String]): Unit = {
    val file = Files.writeString(Files.createTempFile("phalanx-test-", ""), "what they execute")
    val hub = Hub.open(Job("file", 2, 2, useGpu = false, Array.empty), "127.0.0.1", "127.0.0.1", "/tmp")
    try {
      val spec = hub.nodeSpec(0, RankOptions(RankProgram.Command(program), Nil, Nil))
      BarrierRunner.runPython(session.sparkContext, 2, spec, file.toString, "a payload as a file", "barrier", 2, 0)
      val events = Iterator.continually(hub.next(20000)).takeWhile(_.nonEmpty).flatten
      println(s"states: ${events.collectFirst { case end: Hub.Outcome => end.ranks.map(_.state) }}")
    } finally {
      hub.close()
      Files.delete(file)
    }
  }

  private def stopDuring(session: SparkSession, training: => Any): Unit = {
    val going = new Going(training)
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

  test("a large payload and the results travel under Kryo, also where each class has to be registered") {
    val kryo =
      Seq("spark.serializer=org.apache.spark.serializer.KryoSerializer", "spark.kryo.registrationRequired=true")
    val check = "test \"$(cat \"$PHALANX_PAYLOAD\")\" = 'what they execute'"
    val ended = ChildJvm.run(classOf[BareMain].getName, Seq("file", "/bin/sh", "-c", check), kryo.map("-D" + _))
    assert(ended.output.contains("states: Some(Vector(finished, finished))"), s"JAR-23: ${ended.output}")
  }

  test("a driver that gets SIGINT or SIGTERM says so, and its ranks are gone before it is") {
    val program = Seq("bare", "/bin/sh", "-c", "echo up; exec sleep 300")
    val options = Seq("-Dspark.phalanx.grace=1s")
    val main = classOf[BareMain].getName
    val drivers = Seq("INT", "TERM").map(signal =>
      new Going(ChildJvm.run(main, program, options, signalAt = "[rank 1] up", signal = signal, seconds = 60))
    )
    drivers.map(_.end(100).get).foreach { ended =>
      assert(ended.output.contains("sh was cancelled: the driver was asked to end"), s"JAR-7: ${ended.output}")
      assert(ended.output.contains("its ranks are gone"), s"JAR-7: ${ended.output}")
    }
  }

  test("a driver whose ranks take longer than its end may stops Spark all the same") {
    withFolder { folder =>
      val (stay, events) = (Files.createFile(folder.resolve("stay")), Files.createDirectory(folder.resolve("events")))
      val stubborn = s"trap '' TERM; echo up; while [ -e $stay ]; do sleep 0.1; done"
      val options = Seq("spark.phalanx.grace=60s", "spark.shutdown.timeout=6s", "spark.eventLog.enabled=true")
      val ended = ChildJvm.run(
        classOf[BareMain].getName,
        Seq("plugin", "/bin/sh", "-c", stubborn),
        (options :+ s"spark.eventLog.dir=file:$events").map("-D" + _),
        signalAt = "[rank 1] up",
        seconds = 50
      )
      Files.delete(stay) // the guards would wait for the grace
      assert(
        ended.output.contains("its ranks have up to 60.0 s to end, then they are killed"),
        s"JAR-11: ${ended.output}"
      )
      val logs = Using.resource(Files.walk(events))(_.iterator.asScala.map(_.getFileName.toString).toVector)
      assert(logs.exists(_.startsWith("appstatus_")) && !logs.exists(_.endsWith(".inprogress")), s"JAR-11: $logs")
    }
  }

  test("a jar without the native library fails every call with the same sentence") {
    withFolder { folder =>
      // the classes without the native resources
      val own = java.nio.file.Paths.get(classOf[Native].getProtectionDomain.getCodeSource.getLocation.toURI)
      val copy = folder.resolve("dev")
      val files = Files.walk(own.resolve("dev"))
      try
        files.forEach { file =>
          Files.copy(file, copy.resolve(own.resolve("dev").relativize(file).toString)): Unit
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
