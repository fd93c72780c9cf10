package dev.phalanx.spark.jni

import java.nio.file.{Files, Path, Paths}

import scala.util.Using

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.node.UnpackedJar
import dev.phalanx.spark.support.{ChildJvm, PhalanxSuite}

/** 10,000 calls of all kinds, in a JVM that checks JNI. */
final class CheckedJniMain

object CheckedJniMain {
  private val Rounds = 1000

  /** An unknown kind, too few numbers, too few bytes, no memory, a number below 0, a lost column. */
  private val WrongColumns = Seq(
    Array(99L, 0, 0, 0),
    Array(4L, 1, 0, 2, 0, 0, 0),
    Array(4L, 1, 0, 2, 0, 0, 0, 0),
    Array(4L, 1, 0, 2, 0, 0, 0, 8),
    Array(4L, -1, 0, 2, 0, 0, 0, 0),
    Array(11L, 0, 1, 2, 0, 0, 0, 0)
  )

  private object Callbacks extends NodeCallbacks {
    override def interrupted(): String = null
    override def observed(changes: Array[Long]): Unit = assert(changes.length % 2 == 0)
    override def stdoutIsExecutors(): java.lang.Boolean = true
    override def copyFiles(folderAndFiles: Array[String]): String = null
  }

  def main(args: Array[String]): Unit = {
    val folder = Paths.get(args(0))
    val home = args(1)
    val native = NativeLibrary.native
    val settings = Array("spark.phalanx.grace", "1s", "spark.phalanx.unknown", "x")
    var calls = 0
    def call[A](body: => A): A = { calls += 1; body }
    def throws(kind: String)(body: => Any): Unit = {
      calls += 1
      val thrown =
        try { body; None }
        catch {
          case problem: TrainingException  => Some(problem.kind)
          case _: IllegalArgumentException => Some("invalid")
        }
      assert(thrown.contains(kind), s"$thrown is not $kind")
    }
    var descriptors = 0
    var memory = 0L
    for (round <- 1 to Rounds) {
      call(native.version())
      val job = call(native.newJob("tråin", 2, 1, false, settings))
      assert(call(native.settingWarnings(settings)).length == 1)
      assert(call(native.jobGraceMillis(job)) == 1000)
      call(native.slotsTimeoutMillis(settings))
      assert(call(native.graceMillis(settings)) == 1000)
      assert(call(native.metrics()).length % 3 == 0)
      throws("invalid")(native.newJob("train", 2, 1, false, Array("spark.phalanx.grace", "soon")))
      throws("invalid")(native.newJob("train", 3, 2, false, Array.empty))
      throws("invalid")(native.newJob(null, 1, 1, false, Array(null, "x")))
      throws("closed")(native.logs(-round.toLong, 0))
      throws("closed")(native.nextEvent(round.toLong << 40, 0))
      assert(call(native.rowSumsOf(Array.empty)).toSeq == Seq(0L, 0L))
      for (wrong <- WrongColumns) throws("invalid")(native.rowSumsOf(wrong)) // BINDING-19
      call(native.drainLogs())
      if (round % 50 == 0) throws("panic")(native.failForTest("panic", "ouch"))
      if (round % 20 == 0) {
        val hub = call(native.openHub(job, "127.0.0.1", "127.0.0.1", folder.toString))
        call(spec(native, hub, "/bin/true"))
        assert(Option(call(native.nextEvent(hub, 1))).forall(_.head == "status"))
        assert(call(native.resultPath(hub, 0)) == null)
        assert(call(native.logs(hub, 0)) == "")
        assert(call(native.stacks(hub, 10000)).toSeq == Seq(""))
        call(native.stageSeen(hub, 0, -1, 2, 1))
        call(native.decommissioned(hub, Array(7L)))
        throws("invalid")(native.decommissioned(hub, Array(-7L)))
        call(native.stop(hub, "enough"))
        call(native.stageEnded(hub, 0, null))
        call(native.closeHub(hub))
        call(native.closeHub(hub))
        throws("closed")(spec(native, hub, "/bin/true"))
        throws("closed")(native.stacks(hub, 10000))
        assert(call(native.logs(hub, 0)) == "", "BINDING-1")
        call(native.dropLogs(hub))
        call(native.dropLogs(hub))
        throws("closed")(native.logs(hub, 0))
      }
      if (round % 100 == 0) {
        runNode(native, folder, home, "/bin/true", "finished")
        runNode(native, folder, home, "/bin/false", "failed")
        calls += 2
      }
      if (round == Rounds / 2) {
        descriptors = openDescriptors
        memory = residentKb
      }
    }
    val grown = residentKb - memory
    println(s"CALLS $calls")
    println(s"DESCRIPTORS ${openDescriptors - descriptors}")
    println(s"GROWN_KB $grown")
  }

  private def runNode(native: Native, folder: Path, home: String, program: String, outcome: String): Unit = {
    val job = native.newJob("node", 2, 1, false, Array("spark.phalanx.grace", "1s"))
    val hub = native.openHub(job, "127.0.0.1", "127.0.0.1", folder.toString)
    try {
      val node = new Thread(() => {
        val told = spec(native, hub, program)
        val here = Json.write(
          "partition" -> 0,
          "host" -> "here",
          "work_dir" -> folder.toString,
          "tunnel" -> native.hubOf(told)(1)
        )
        native.runNode(told, Array.empty, null, here, home, Array("B", "ü"), Callbacks)
        native.stageEnded(hub, 0, null)
      })
      node.start()
      var end: Array[String] = null
      while (end == null || !Set("finished", "failed")(end(0))) end = native.nextEvent(hub, 1000)
      assert(end(0) == outcome, end.mkString(" "))
      node.join()
    } finally native.closeHub(hub)
  }

  private def spec(native: Native, hub: Long, program: String): Array[Byte] =
    native.nodeSpec(hub, 0, null, Array(program), Array("A", "ü"), Array.empty)

  private def openDescriptors: Int =
    Using.resource(Files.list(Paths.get("/proc/self/fd")))(_.count().toInt)

  private def residentKb: Long = {
    System.gc()
    val line = Files.readAllLines(Paths.get("/proc/self/status")).stream.filter(_.startsWith("VmRSS")).findFirst.get
    line.replaceAll("\\D", "").toLong
  }
}

class CheckedJniSuite extends PhalanxSuite {
  test("10,000 calls under -Xcheck:jni give no warning and leave nothing behind") {
    withFolder { folder =>
      val home = UnpackedJar.get().folder.toString
      val ended = ChildJvm.run(
        classOf[CheckedJniMain].getName,
        Seq(folder.toString, home),
        // The heap is resident from the first, and little is compiled: what grows is what is not given back.
        Seq("-Xcheck:jni", "-Xms64m", "-Xmx64m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC"),
        // Else each of several threads at once has a heap of the C library's for itself.
        variables = Seq("MALLOC_ARENA_MAX=1"),
        seconds = 100
      )
      assert(ended.code == 0, ended.output)
      val warnings = ended.output.linesIterator.filter(_.matches(".*(WARNING|FATAL ERROR).*")).toSeq
      assert(warnings.isEmpty, ended.output)
      def number(name: String) =
        ended.output.linesIterator.collectFirst {
          case line if line.startsWith(s"$name ") => line.split(' ')(1).toLong
        }.get
      assert(number("CALLS") >= 10000)
      assert(number("DESCRIPTORS") <= 2, ended.output)
      assert(number("GROWN_KB") < 8 * 1024, s"BINDING-4: references are given back: ${ended.output}")
      val left = Using.resource(Files.list(folder))(_.count())
      assert(left <= 8, "the core keeps the logs of the newest 8 jobs, and nothing else")
    }
  }
}
