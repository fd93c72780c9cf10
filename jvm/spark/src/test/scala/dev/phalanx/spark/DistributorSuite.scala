package dev.phalanx.spark

import java.nio.file.{Files, Path}
import java.util.concurrent.{ConcurrentHashMap, ConcurrentLinkedQueue}

import scala.jdk.CollectionConverters._

import org.apache.spark.scheduler.{SparkListener, SparkListenerJobStart, SparkListenerTaskEnd}
import org.apache.spark.{Success, TaskEndReason, TaskKilled}

import dev.phalanx.spark.driver.{Hub, Job, Payload, RankOptions, RankProgram}
import dev.phalanx.spark.internal.{Json, SparkInternals}
import dev.phalanx.spark.node.NodeTask
import dev.phalanx.spark.support.Cluster.{Going, distributor, printed, sc}
import dev.phalanx.spark.support.{Cluster, Logged, PhalanxSuite, SparkUi, Whole}

/** Trainings on a real cluster, from Scala. */
class DistributorSuite extends PhalanxSuite {

  // Spark serves the files that were added from where they are, for as long as the application runs.
  private lazy val shipped = {
    val folder = Files.createTempDirectory("phalanx-test-shipped-")
    SparkInternals.deleteAtShutdown(folder.toFile)
    folder
  }

  /** Waits for a file that a rank writes. */
  private def awaitFile(file: Path): Unit = {
    eventually(assert(Files.exists(file)))
    ()
  }

  private def sleeper(folder: Path): String = python(
    folder,
    "sleeper.py",
    s"""import os, time
       |open("$folder/" + os.environ["RANK"], "w").close()
       |time.sleep(60)"""
  )

  private def bothRun(folder: Path): Unit = Seq("0", "1").foreach(rank => awaitFile(folder.resolve(rank)))

  // Another is in tests/local/test_checkpoint_owners.py.
  test("files of one name never find each other's checkpoints, unless they were given the name", Whole) {
    withFolder { folder =>
      def file(of: String) = {
        Files.createDirectories(folder.resolve(of))
        python(
          folder.resolve(of),
          "train.py",
          s"""import phalanx
             |before = phalanx.checkpoint.latest()
             |phalanx.checkpoint.save("$of", 5)
             |phalanx.set_result([before])"""
        )
      }
      val sharing = distributor(1).withCheckpointDir(folder.resolve("shared").toString)
      assert(sharing.run(file("cats")).resultJson.contains("[null]"))
      val refused = intercept[TrainingException](sharing.run(file("dogs"))).getMessage
      for (part <- Seq("/cats/train.py, run by ", "/dogs/train.py, run by ", "checkpoint_name='train.py'"))
        assert(refused.contains(part), "CHECKPOINT-8")
      assert(sharing.run(file("cats")).resultJson.contains("""[[5, "cats"]]"""))
      assert(sharing.withCheckpointName("train.py").run(file("dogs")).resultJson.contains("""[[5, "cats"]]"""))
    }
  }

  test("a file trains and leaves JSON, output and every rank's state") {
    withFolder { folder =>
      val file = python(
        folder,
        "train.py",
        """import os, sys
          |import phalanx
          |print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:])
          |phalanx.set_result({"rank": int(os.environ["RANK"]), "args": sys.argv[1:]})"""
      )
      var result: TrainingResult = null
      val output = printed { result = distributor().run(file, "--lr=0.01", "ü") }
      assert(Json.read(result.resultJson.get) == Json.read("""{"rank": 0, "args": ["--lr=0.01", "ü"]}"""))
      assert(result.resultBytes.isEmpty)
      assert(result.ranks.map(outcome => outcome.rank -> outcome.state) == Seq(0 -> "finished", 1 -> "finished"))
      assert(output.contains("[rank 0] rank 0 of 2 ['--lr=0.01', 'ü']"))
      assert(output.contains("[rank 1] rank 1 of 2"))
      val points = result.phases.map(_.name)
      assert(Seq("hub open", "all joined", "rank started", "user code", "returned").forall(points.contains))
      assert(result.phases.map(_.seconds).forall(_ >= 0))
    }
  }

  test("ranks have the variables that they are given, and one that is Phalanx's is refused without its value") {
    withFolder { folder =>
      val file = python(
        folder,
        "variables.py",
        """import os
          |import phalanx
          |phalanx.set_result([os.environ["GIVEN"], os.environ["OTHER"]])"""
      )
      val having = distributor().withEnv(Map("GIVEN" -> "ü=1")).withEnv(java.util.Map.of("OTHER", "2"))
      assert(Json.read(having.run(file).resultJson.get) == Json.read("""["ü=1", "2"]"""))
      val refused = intercept[IllegalArgumentException](distributor().withEnv(Map("RANK" -> "hidden")).run(file))
      assert(refused.getMessage.contains("RANK") && !refused.getMessage.contains("hidden"), "JOB-25")
    }
  }

  test("a node is a task, or a host where that is wanted") {
    withFolder { folder =>
      val file = python(
        folder,
        "nodes.py",
        """import os, phalanx
          |phalanx.set_result([os.environ["LOCAL_WORLD_SIZE"], os.environ["GROUP_WORLD_SIZE"]])"""
      )
      def nodes(distributor: TorchDistributor) = Json.texts(Json.read(distributor.run(file).getResultJson))
      assert(nodes(distributor()) == Seq("1", "2"))
      assert(nodes(distributor().withLocalRanks("host")) == Seq("2", "1"))
    }
  }

  test("bytes come back as they are, nothing as nothing") {
    withFolder { folder =>
      val bytes = python(folder, "b.py", "import phalanx\nphalanx.set_result(bytes(range(256)))")
      assert(distributor().run(bytes).resultBytes.get.toSeq == (0 to 255).map(_.toByte))
      val result = distributor().run(python(folder, "n.py", "pass"))
      assert(result.resultBytes.isEmpty && result.resultJson.isEmpty)
    }
  }

  test("a module of a shipped file trains") {
    sc.addFile(
      python(shipped, "shipped_training.py", "import phalanx, sys\nphalanx.set_result([__name__, *sys.argv[1:]])")
    )
    val result = distributor().runModule("shipped_training", "a", "b")
    assert(Json.texts(Json.read(result.getResultJson)) == Seq("__main__", "a", "b"))
  }

  test("a file that Spark shipped is found by its name") {
    sc.addFile(python(shipped, "by_name_only.py", "import phalanx\nphalanx.set_result(7)"))
    assert(distributor(1).run("by_name_only.py").resultJson.contains("7"))
  }

  test("a program of one's own trains, and its exit code counts") {
    assert(distributor().runProgram(Seq("/bin/true")).ranks.map(_.state) == Seq("finished", "finished"))
    val failed = intercept[TrainingException](distributor().runProgram(Seq("/bin/sh", "-c", "exit $((RANK * 4))")))
    assert(failed.kind == "exit_code" && failed.exitCode.contains(4) && failed.rank.contains(1))
  }

  test("a rank that raises is told with its traceback, and what the others did") {
    withFolder { folder =>
      val file = python(
        folder,
        "bad.py",
        s"""import os, time
           |print("before")
           |if os.environ["RANK"] == "1":
           |    while not os.path.exists("$folder/begun"): time.sleep(0.01)
           |    raise ValueError("bad luck")
           |open("$folder/begun", "w").close()
           |time.sleep(60)"""
      )
      val failed = intercept[TrainingException](distributor().run(file))
      assert(failed.kind == "exception" && failed.rank.contains(1))
      assert(failed.exceptionType == "ValueError" && failed.message.endsWith("raised ValueError: bad luck"))
      assert(failed.traceback.contains("bad.py\", line 5"))
      assert(failed.lastLines.contains("before") && failed.host.nonEmpty && failed.logPath.nonEmpty)
      assert(failed.ranks.map(_.rank) == Seq(0, 1) && failed.ranks.head.state == "stopped")
      assert(failed.getMessage.contains("bad luck") && failed.getMessage.contains("The other ranks:"))
    }
  }

  test("a Python that isn't there is told as the cause") {
    sc.getConf // the session is there
    Cluster.spark.conf.set("spark.phalanx.joinTimeout", "20s")
    val failed = intercept[TrainingException](distributor().runProgram(Seq("/no/such/program")))
    Cluster.spark.conf.unset("spark.phalanx.joinTimeout")
    assert(failed.kind == "start" && failed.message.contains("/no/such/program"), failed.message)
  }

  test("cancelling the caller's job group ends the training as cancelled") {
    withFolder { folder =>
      val file = sleeper(folder)
      val ends = new ConcurrentLinkedQueue[TaskEndReason]
      // Spark may tell only now how tasks of earlier tests ended.
      val stages = ConcurrentHashMap.newKeySet[Int]
      val listener = new SparkListener {
        override def onJobStart(start: SparkListenerJobStart): Unit =
          if (start.properties.getProperty("spark.jobGroup.id") == "mine") start.stageIds.foreach(stages.add)
        override def onTaskEnd(end: SparkListenerTaskEnd): Unit =
          if (stages.contains(end.stageId)) ends.add(end.reason): Unit
      }
      sc.addSparkListener(listener)
      val going = new Going({
        sc.setJobGroup("mine", "my own description")
        distributor().run(file)
      })
      bothRun(folder)
      assert(stageDescriptions.contains("my own description"), "STAGE-5: the caller's description stays")
      sc.cancelJobGroup("mine")
      val failed = going.end().failed.get.asInstanceOf[TrainingException]
      assert(failed.kind == "cancelled", failed.message)
      eventually(assert(ends.size == 2))
      sc.removeSparkListener(listener)
      // The hub may have told a node to end before Spark's order comes to its task, which then ends well.
      val (killed, others) = ends.asScala.partition(_.isInstanceOf[TaskKilled])
      assert(killed.nonEmpty && others.forall(_ == Success), s"JAR-21: $ends")
    }
  }

  test("an interrupt of the caller's thread ends the training as cancelled, and stays set") {
    withFolder { folder =>
      val file = sleeper(folder)
      var flag = false
      val going = new Going(
        try distributor().run(file)
        finally flag = Thread.currentThread.isInterrupted
      )
      bothRun(folder)
      assert(stageDescriptions.contains("Phalanx: sleeper.py, 2 ranks"))
      going.interrupt()
      val failed = going.end().failed.get.asInstanceOf[TrainingException]
      assert(failed.kind == "cancelled" && failed.message.contains("interrupted by the caller"), failed.message)
      assert(flag)
    }
  }

  test("a run leaves no property behind in the caller's thread") {
    sc.setLocalProperty("spark.job.description", null)
    distributor().runProgram(Seq("/bin/true"))
    assert(sc.getLocalProperty("spark.job.description") == null, "STAGE-5")
    assert(sc.getJobTags().isEmpty, "STAGE-5")
  }

  test("two trainings at once don't disturb each other") {
    withFolder { folder =>
      val file = python(
        folder,
        "one.py",
        s"""import os, sys, time, phalanx
           |open("$folder/" + sys.argv[1], "w").close()
           |while len(os.listdir("$folder")) < 3: time.sleep(0.01)
           |phalanx.set_result(sys.argv[1])"""
      )
      val first = new Going(distributor(1).run(file, "a"))
      val second = new Going(distributor(1).run(file, "b"))
      assert(first.end().get.resultJson.contains("\"a\"") && second.end().get.resultJson.contains("\"b\""))
    }
  }

  test("in local mode the ranks run on the driver, with Spark's files") {
    withFolder { folder =>
      Cluster.spark
      val file = python(
        folder,
        "local.py",
        """import os, phalanx
          |phalanx.set_result([os.environ["LOCAL_WORLD_SIZE"], os.getcwd(), os.environ["PHALANX_SPARK_FILES"]])"""
      )
      val result = new TorchDistributor(numProcesses = 2, localMode = true, useGpu = false).run(file)
      val answer = Json.texts(Json.read(result.getResultJson))
      assert(answer.head == "2" && answer(1) == sys.props("user.dir"))
      assert(answer(2) == new java.io.File(org.apache.spark.SparkFiles.getRootDirectory()).getAbsolutePath)
    }
  }

  test("Java calls all of it") {
    withFolder { folder =>
      Cluster.spark
      val file = python(folder, "java.py", "import phalanx, sys\nphalanx.set_result(sys.argv[1:])")
      assert(JavaCaller.train(file).asScala == Seq("[\"a\", \"b\"]", "0 finished", "1 finished"))
      assert(JavaCaller.fail() == "exit_code 0 3 null []")
    }
  }

  test("a run that can't get its slots says so before anything starts") {
    val refused = intercept[IllegalStateException](distributor(3).runProgram(Seq("/bin/true")))
    assert(refused.getMessage.contains("there are never more than 2"))
  }

  test("an unknown setting is warned about with the nearest one") {
    Cluster.spark.conf.set("spark.phalanx.gracee", "1s")
    val said =
      try Logged.by("dev.phalanx")(distributor().runProgram(Seq("/bin/true")): Unit)
      finally Cluster.spark.conf.unset("spark.phalanx.gracee")
    assert(said.exists(line => line.contains("spark.phalanx.gracee") && line.contains("spark.phalanx.grace")))
    assert(said.contains("INFO Started distributed training with 2 executor processes"), "JAR-8")
    assert(said.contains("INFO Finished distributed training with 2 executor processes"))
  }

  test("what the nodes can't read is told before there is a stage") {
    val failed =
      intercept[TrainingException](BarrierRunner.run(
        sc,
        1,
        "none",
        new NodeTask(Array.empty, Array.empty),
        "barrier",
        1
      ))
    assert(failed.message.contains("can't decode the node spec"), failed.message)
    assert(sc.getLocalProperty("spark.job.description") == null, "STAGE-5")
  }

  test("tasks that find the hub closed end in a sentence, and nobody trains without a driver") {
    val settings = Array("spark.phalanx.connectTimeout", "200ms", "spark.phalanx.grace", "1s")
    val job = Job("closed", 2, 2, useGpu = false, settings)
    val hub = Hub.open(job, "127.0.0.1", "127.0.0.1", sys.props("java.io.tmpdir"))
    val spec = hub.nodeSpec(0, RankOptions(RankProgram.Command(Seq("/bin/true")), Nil, Nil))
    hub.close()
    val task = new NodeTask(spec, Payload.none)
    Cluster.spark
    val failed = intercept[TrainingException](BarrierRunner.run(sc, 2, "closed", task, "barrier", 2))
    assert(failed.message.contains("the job is over"), failed.message)
    assert(failed.message.linesIterator.length == 1 && !failed.message.contains("Exception"), failed.message)
    assert(failed.getCause.isInstanceOf[org.apache.spark.SparkException])
  }

  private def stageDescriptions: Seq[String] = {
    val store = Cluster.spark.sparkContext.statusTracker
    val ui = SparkUi.get("/api/v1/applications/" + sc.applicationId + "/jobs?status=running")
    assert(store.getActiveJobIds().nonEmpty)
    Json.read(ui).elements().asScala.map(_.path("description").asText()).toVector
  }
}
