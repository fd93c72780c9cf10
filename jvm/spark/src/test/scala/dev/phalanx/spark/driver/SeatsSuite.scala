package dev.phalanx.spark.driver

import java.nio.file.{Files, Path}
import java.util.concurrent.ConcurrentLinkedQueue

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.spark.scheduler.{SparkListener, SparkListenerJobStart, SparkListenerTaskStart}
import org.apache.spark.sql.SparkSession
import org.apache.spark.{BarrierTaskContext, SparkContext}

import dev.phalanx.spark.internal.SparkInternals
import dev.phalanx.spark.node.NodeTask
import dev.phalanx.spark.support.Cluster.{Going, distributor, sc}
import dev.phalanx.spark.support.{ChildJvm, Cluster, PhalanxSuite}
import dev.phalanx.spark.{BarrierRunner, Run, TorchDistributor, TrainingException}

/** An application with dynamic allocation, which has no executors at first: `BreathingMain FILE`. */
final class BreathingMain

object BreathingMain {

  def main(args: Array[String]): Unit = {
    val session = SparkSession.builder()
      .master("local-cluster[2,1,1024]")
      .config(ChildJvm.ofExecutors)
      .config("spark.ui.enabled", "false")
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.executor.cores", "1")
      .config("spark.dynamicAllocation.enabled", "true")
      .config("spark.dynamicAllocation.shuffleTracking.enabled", "true")
      .config("spark.dynamicAllocation.minExecutors", "0")
      .config("spark.dynamicAllocation.initialExecutors", "0")
      .config("spark.dynamicAllocation.executorIdleTimeout", "2s")
      .config("spark.pyspark.python", PhalanxSuite.python)
      .config("spark.phalanx.grace", "1s")
      .getOrCreate()
    def executors = session.sparkContext.statusTracker.getExecutorInfos.length - 1
    def train() = new TorchDistributor(2, localMode = false, useGpu = false).run(args(0)).results.map(_.json.get)
    // One that lacks an executor, which another job has, and one behind it.
    def cancelled() = {
      val sc = session.sparkContext
      def jobs(wanted: Int) = {
        val until = System.nanoTime + 60000000000L
        while (sc.statusTracker.getActiveJobIds().length != wanted && System.nanoTime < until) Thread.sleep(50)
      }
      val folder = Files.createTempDirectory("held-")
      val (held, release) = (folder.resolve("held").toFile, folder.resolve("release").toFile)
      val holder = Cluster.holding(sc, held, release)
      while (!held.exists && !holder.isOver) Thread.sleep(50)
      sc.setJobGroup("mine", "waits for executors")
      val waits = new Going(train())
      jobs(3)
      val behind = new Going(train())
      Thread.sleep(1000)
      sc.cancelJobGroup("mine")
      val kinds = Seq(waits, behind).map(_.end(20).failed.get.asInstanceOf[TrainingException].kind)
      jobs(1)
      val left = sc.statusTracker.getActiveJobIds().length
      release.createNewFile()
      holder.end().get
      s"$kinds, $left job left, then ${train()}"
    }
    try {
      println(s"before: $executors executors")
      println(s"results: ${train()}, with $executors executors")
      val both = Seq.fill(2)(new Going(train()))
      println(s"both: ${both.map(_.end(60).get)}")
      println(s"cancelled: ${cancelled()}")
      val until = System.nanoTime + 60000000000L
      while (executors > 0 && System.nanoTime < until) Thread.sleep(50)
      println(s"after: $executors executors")
    } finally session.stop()
  }
}

/** Gangs of tasks, with and without dynamic allocation. */
class SeatsSuite extends PhalanxSuite {

  /** What Spark tells of the seats whose jobs begin while `body` runs. */
  final private class Told extends SparkListener {
    val jobs = new ConcurrentLinkedQueue[SparkListenerJobStart]
    val tasks = new ConcurrentLinkedQueue[SparkListenerTaskStart]

    @volatile var hasSeenLast = false

    override def onJobStart(start: SparkListenerJobStart): Unit = {
      if (start.properties.getProperty(SparkInternals.GANG) != null) jobs.add(start)
      if (start.properties.getProperty(Last) != null) hasSeenLast = true
    }

    override def onTaskStart(start: SparkListenerTaskStart): Unit =
      if (jobs.asScala.exists(_.stageIds.contains(start.stageId))) tasks.add(start): Unit
  }

  private val Last = "phalanx.test.last"

  private def told(body: => Any): Told = {
    val told = new Told
    sc.addSparkListener(told)
    try body
    finally {
      // Behind everything that this listener is told by now.
      sc.setLocalProperty(Last, "yes")
      sc.parallelize(0 until 1, 1).count()
      sc.setLocalProperty(Last, null)
      eventually(assert(told.hasSeenLast && sc.statusTracker.getActiveJobIds().isEmpty))
      sc.removeSparkListener(told)
    }
    told
  }

  private def ranks(folder: Path): String =
    python(folder, "ranks.py", """import os, phalanx; phalanx.set_result(int(os.environ["RANK"]))""")

  private def sleeper(folder: Path): String = python(
    folder,
    "sleeper.py",
    s"""import os, time
       |open("$folder/" + os.environ["RANK"], "w").close()
       |time.sleep(60)"""
  )

  private def ended(run: Run): TrainingException =
    Try(run.result(java.time.Duration.ofSeconds(60))).failed.get.asInstanceOf[TrainingException]

  test("each seat is a job of one task, and the run ends as that of a barrier stage") {
    withFolder { folder =>
      var results = Seq.empty[String]
      val seats = told {
        results = distributor().withGang("tasks").run(ranks(folder)).results.map(_.json.get)
      }
      assert(results == Seq("0", "1"))
      assert(seats.jobs.size == 2 && seats.jobs.asScala.forall(_.stageInfos.map(_.numTasks) == Seq(1)))
      assert(seats.tasks.asScala.map(_.taskInfo.partitionId).toSet == Set(0, 1))
      val properties = seats.jobs.peek.properties
      assert(properties.getProperty("spark.job.description") == "Phalanx: ranks.py, 2 ranks", "STAGE-5")
      assert(sc.getJobTags().isEmpty && sc.getLocalProperty(SparkInternals.GANG) == null, "STAGE-5")
    }
  }

  test("a rank that raises is told as with a barrier stage, and no seat runs again") {
    withFolder { folder =>
      val file = python(
        folder,
        "bad.py",
        """import os, time
          |if os.environ["RANK"] == "1": raise ValueError("bad luck")
          |time.sleep(60)"""
      )
      def failed(gang: String) = intercept[TrainingException](distributor().withGang(gang).run(file))
      var ofTasks: TrainingException = null
      val seats = told { ofTasks = failed("tasks") }
      val ofBarrier = failed("barrier")
      assert(ofTasks.message.endsWith("raised ValueError: bad luck"), ofTasks.message)
      assert((ofTasks.kind, ofTasks.exceptionType, ofTasks.rank) ==
        ((ofBarrier.kind, ofBarrier.exceptionType, ofBarrier.rank)))
      assert(ofTasks.ranks.map(_.state) == ofBarrier.ranks.map(_.state))
      assert(seats.tasks.size == 2 && seats.tasks.asScala.forall(_.taskInfo.attemptNumber == 0))
    }
  }

  test("what a node throws is the gang's failure, in the words that a barrier stage has for it") {
    val settings = Array("spark.phalanx.connectTimeout", "200ms", "spark.phalanx.grace", "1s")
    val hub = Hub.open(Job("closed", 2, 2, useGpu = false, settings), "127.0.0.1", "127.0.0.1", "/tmp")
    val spec = hub.nodeSpec(0, RankOptions(RankProgram.Command(Seq("/bin/true")), Nil, Nil))
    hub.close()
    def failed(gang: String) =
      intercept[TrainingException](BarrierRunner.run(sc, 2, "closed", new NodeTask(spec, Payload.none), gang, 2))
    var ofTasks: TrainingException = null
    val seats = told { ofTasks = failed("tasks") }
    assert(ofTasks.message.contains("the job is over"), ofTasks.message)
    // Which task is told, and its ports, are chance.
    def words(failed: TrainingException) = (failed.kind, failed.message.replaceAll("[0-9]+", "N"))
    assert(words(ofTasks) == words(failed("barrier")))
    // Another executor might have reached the driver.
    assert(seats.tasks.asScala.map(_.taskInfo.attemptNumber).max == 3, "JAR-27")
    assert(intercept[TrainingException] {
      BarrierRunner.run(sc, 2, "none", new NodeTask(spec, Payload.none), "swarm", 2)
    }.message == "a gang is barrier or tasks, not swarm")
  }

  test("two gangs at once both finish, and a large payload travels") {
    withFolder { folder =>
      val large = Files.writeString(
        folder.resolve("large.py"),
        s"# ${"x" * (200 << 10)}\nimport phalanx; phalanx.set_result('large')"
      )
      val file = ranks(folder)
      val first = new Going(distributor().withGang("tasks").run(file))
      val second = new Going(distributor().withGang("tasks").run(large.toString))
      assert(first.end(60).get.results.map(_.json.get) == Seq("0", "1"), "JAR-28")
      assert(second.end(60).get.resultJson.contains("\"large\""), "JAR-28")
    }
  }

  test("a cancelled run leaves no job, whether it runs or waits for slots or for its turn") {
    withFolder { folder =>
      val seats = told {
        val run = distributor().withGang("tasks").start(sleeper(folder))
        eventually(assert(Seq("0", "1").forall(rank => Files.exists(folder.resolve(rank)))))
        val waits = distributor().withGang("tasks").start(ranks(folder))
        eventually(assert(waits.status == "waiting for 2 slots; 0 are free"))
        val queues = distributor().withGang("tasks").start(ranks(folder))
        eventually(assert(queues.status == "waiting for 2 of 2 tasks"))
        Seq(queues, waits, run).foreach { each =>
          each.cancel()
          assert(ended(each).kind == "cancelled")
        }
      }
      assert(seats.jobs.size == 2)
      val next = Gathering.join(Set("next"))
      assert(next.isHeld, "JAR-28")
      next.close()
    }
  }

  test("cancelling the caller's job group ends all seats as cancelled") {
    withFolder { folder =>
      val going = new Going({
        sc.setJobGroup("seats", "my own description")
        distributor().withGang("tasks").run(sleeper(folder))
      })
      eventually(assert(Seq("0", "1").forall(rank => Files.exists(folder.resolve(rank)))))
      sc.cancelJobGroup("seats")
      val failed = going.end().failed.get.asInstanceOf[TrainingException]
      assert(failed.kind == "cancelled", failed.message)
      eventually(assert(sc.statusTracker.getActiveJobIds().isEmpty))
    }
  }

  for (how <- Seq("its job group", "all jobs")) test(s"cancelling $how ends gangs in the line, too") {
    withFolder { folder =>
      def inGroup(group: String, file: String) = {
        sc.setJobGroup(group, "of these tests")
        try distributor().withGang("tasks").start(file)
        finally sc.clearJobGroup()
      }
      val seats = told {
        val runs = inGroup("seats", sleeper(folder))
        eventually(assert(Seq("0", "1").forall(rank => Files.exists(folder.resolve(rank)))))
        val waits = inGroup("seats", ranks(folder))
        eventually(assert(waits.status == "waiting for 2 slots; 0 are free"))
        val (queues, others) = (inGroup("seats", ranks(folder)), inGroup("others", ranks(folder)))
        Thread.sleep(500)
        if (how == "all jobs") sc.cancelAllJobs() else sc.cancelJobGroup("seats")
        Seq(runs, waits, queues).foreach(run => assert(ended(run).kind == "cancelled", "STAGE-11"))
        if (how == "all jobs") assert(ended(others).kind == "cancelled", "STAGE-11")
        else assert(others.result(java.time.Duration.ofSeconds(60)).results.map(_.json.get) == Seq("0", "1"))
      }
      assert(seats.jobs.size == (if (how == "all jobs") 2 else 4), "STAGE-11: whoever waited has not begun")
    }
  }

  test("an executor's host is the one that Spark tells to a barrier stage's tasks") {
    Cluster.spark
    val hosts = SeatsSuite.hosts(sc)
    assert(hosts.length == 2)
    hosts.foreach { case (own, told) => assert(NodeTask.hostOf(own) == NodeTask.hostOf(told)) }
  }

  test("with dynamic allocation the executors come for a gang, and go after it") {
    withFolder { folder =>
      val ended = ChildJvm.run(classOf[BreathingMain].getName, Seq(ranks(folder)))
      assert(ended.code == 0, ended.output)
      val lines = Seq(
        "before: 0 executors",
        "results: Vector(0, 1), with 2 executors",
        "both: List(Vector(0, 1), Vector(0, 1))",
        "cancelled: List(cancelled, cancelled), 1 job left, then Vector(0, 1)",
        "after: 0 executors"
      )
      lines.foreach(line => assert(ended.output.contains(line), ended.output))
    }
  }
}

object SeatsSuite {

  /** For each of two tasks of a barrier stage: its executor's host, and its address as Spark tells it. */
  private def hosts(sc: SparkContext): Seq[(String, String)] =
    sc.parallelize(0 until 2, 2).barrier().mapPartitions { _ =>
      val context = BarrierTaskContext.get()
      Iterator(SparkInternals.executorHost -> context.getTaskInfos()(context.partitionId()).address)
    }.collect().toSeq
}
