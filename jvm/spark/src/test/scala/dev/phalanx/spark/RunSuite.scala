package dev.phalanx.spark

import java.io.ByteArrayOutputStream
import java.nio.file.{Files, Path}
import java.time.Duration
import java.util.concurrent.TimeoutException

import scala.util.Try

import dev.phalanx.spark.support.Cluster.{Going, distributor, printed}
import dev.phalanx.spark.support.{Cluster, PhalanxSuite, Whole}

/** What a run tells while it goes on, and how it is ended and begun again, from Scala. */
class RunSuite extends PhalanxSuite {
  private val Soon = Duration.ofSeconds(60)

  /** The words of `Run.status`, in the order in which they can come. */
  private val Words = Seq(
    "preparing",
    "waiting for 2 of 2 tasks",
    "waiting for 1 of 2 tasks",
    "starting ranks",
    "training",
    "training, step 120",
    "over"
  )

  /** A file whose ranks say hello, report a step and wait until the file `go` is there. */
  private def waiting(folder: Path): String = python(
    folder,
    "waiting.py",
    s"""import os, time
       |import phalanx
       |
       |def waits_here():
       |    while not os.path.exists("$folder/go"):
       |        time.sleep(0.05)
       |
       |print("hello from", os.environ["RANK"])
       |phalanx.report(step=120, loss=0.5)
       |waits_here()
       |phalanx.set_result(int(os.environ["RANK"]))"""
  )

  /** Runs `body` with a run that is over afterwards. */
  private def going[A](run: Run)(body: Run => A): A =
    try body(run)
    finally {
      run.cancel()
      Try(run.result(Soon)): Unit
    }

  private def ended(run: Run): TrainingException =
    Try(run.result(Soon)).failed.get.asInstanceOf[TrainingException]

  test("status, reports, logs and stacks are told while a run goes on") {
    withFolder(folder =>
      going(distributor().start(waiting(folder))) { run =>
        var told = Vector(run.status)
        val watch = new Going(while (!run.done) {
          val status = run.status
          // Whether another test's tasks are over yet is chance.
          if (status != told.last && !status.contains("slots;")) told :+= status
          Thread.sleep(1)
        })
        eventually(assert(run.status == "training, step 120" && run.reports.size == 2))
        assert(run.reports(1).step == 120 && run.reports(1).number("loss").contains(0.5))
        assert(run.reports(1).number("accuracy").isEmpty)
        eventually(assert(run.logs(1) == "hello from 1\n"))
        val stacks = run.stacks()
        assert(stacks.byRank.keySet == Set(0, 1) && stacks.byRank(0).contains("in waits_here"), stacks)
        assert(stacks.toString.startsWith("ranks 0-1:\n"), stacks)
        assert(!run.done && run.ranks.isEmpty)
        intercept[TimeoutException](run.result(Duration.ofMillis(1)))
        Files.createFile(folder.resolve("go"))
        assert(run.results(Soon).map(_.json) == Seq(Some("0"), Some("1")))
        watch.end()
        assert(run.done && run.status == "over" && run.ranks.map(_.state) == Seq("finished", "finished"))
        assert(told == Words.filter(told.contains), "each once, in this order")
        assert(run.logs(1) == "hello from 1\n" && run.logs(-1) == "" && run.logs(2) == "")
        assert(run.phases.last.name == "returned")
        intercept[IllegalStateException](run.stacks())
      }
    )
  }

  // Another is in tests/e2e/test_queue.py.
  test("a run waits for slots that another job holds, and its tasks' time to join begins when they run", Whole) {
    withFolder { folder =>
      val (held, release) = (folder.resolve("held").toFile, folder.resolve("release").toFile)
      val other = Cluster.holding(held, release)
      eventually(assert(held.exists || other.isOver))
      if (other.isOver) other.end().get
      Cluster.spark.conf.set("spark.phalanx.joinTimeout", "10s")
      try {
        val file = python(folder, "short.py", "import phalanx\nphalanx.set_result(3)")
        going(distributor().start(file)) { run =>
          eventually(assert(run.done || run.status == "waiting for 2 slots; 1 is free"))
          val until = System.nanoTime + 13000000000L
          eventually(assert(run.done || System.nanoTime > until))
          assert(!run.done, Try(run.result(Soon)))
          release.createNewFile()
          assert(run.results(Soon).map(_.json) == Seq(Some("3"), Some("3")), "DRIVER-42")
        }
        assert(!Thread.getAllStackTraces.keySet.toString.contains("phalanx-stage-watch"), "STAGE-7")
      } finally {
        Cluster.spark.conf.unset("spark.phalanx.joinTimeout")
        release.createNewFile()
        other.end(): Unit
      }
    }
  }

  test("withLogs chooses whose output is shown, and a word that is none is named before the start") {
    withFolder { folder =>
      val file = python(folder, "speaks.py", """import os; print("I am", os.environ["RANK"])""")
      val out = new ByteArrayOutputStream
      Console.withOut(out)(distributor().withLogs(1).run(file)): Unit
      assert(out.toString.linesIterator.toSeq == Seq("[rank 1] I am 1"), "JOB-6")
      val refused = intercept[IllegalArgumentException](distributor().withLogs("loud").run(file))
      assert(refused.getMessage.contains("has to be one of auto, all, dedup"), refused.getMessage)
    }
  }

  test("a hang ends with the stacks of all ranks, equal ones once") {
    withFolder { folder =>
      val file = python(
        folder,
        "hangs.py",
        """import threading
          |
          |def waits_for_a_lock_that_nobody_gives_back():
          |    lock = threading.Lock()
          |    lock.acquire()
          |    lock.acquire()
          |
          |waits_for_a_lock_that_nobody_gives_back()"""
      )
      val failed = intercept[TrainingException](distributor().withHangTimeout(Duration.ofSeconds(4)).run(file))
      assert(failed.kind == "hang" && failed.message.contains("made progress for 4"), failed.message)
      assert(failed.stacks.startsWith("ranks 0-1:\n"), failed.stacks)
      assert(failed.stacks.contains("in waits_for_a_lock_that_nobody_gives_back"), failed.stacks)
      assert(failed.getMessage.contains(failed.stacks.linesIterator.next()))
      assert(failed.ranks.map(_.state) == Seq("stopped", "stopped"))
    }
  }

  test("a run that fails has the results of the ranks that had ended well, also when it has travelled") {
    withFolder { folder =>
      val file = python(
        folder,
        "partial.py",
        s"""import os, time
           |import phalanx
           |if os.environ["RANK"] == "1":
           |    time.sleep(1)
           |    raise ValueError("late")
           |phalanx.set_result({"early": True})"""
      )
      val failed = ended(distributor().start(file))
      for (exception <- Seq(failed, PhalanxSuite.travelled(failed))) {
        assert(exception.results.map(_.state.takeWhile(_ != ' ')) == Seq("finished", "raised"))
        assert(exception.results.map(_.json) == Seq(Some("""{"early": true}"""), None))
      }
    }
  }

  test("every rank's result comes back, or why it doesn't") {
    withFolder { folder =>
      val file = python(
        folder,
        "results.py",
        """import os
          |import phalanx
          |phalanx.set_result(b"weights" if os.environ["RANK"] == "0" else {1, 2})"""
      )
      val result = new TorchDistributor(2, localMode = true, useGpu = false).start(file).result(Soon)
      assert(result.results.map(_.bytes.map(new String(_))) == Seq(Some("weights"), None))
      assert(result.resultBytes.exists(_ sameElements result.results.head.bytes.get))
      val reason = "rank 1: the value that results.py gave to set_result (a set) is neither bytes nor JSON"
      assert(result.results(1).unavailable.exists(_.startsWith(reason)), result.results(1).unavailable)
    }
  }

  test("results go when nothing refers to them any more") {
    withFolder { folder =>
      Cluster.spark
      val kept = keptFor(folder)
      eventually {
        System.gc()
        assert(!Files.exists(kept.getParent), "JAR-6")
      }
    }
  }

  /** Where the file of a result was that nothing refers to any more. */
  private def keptFor(folder: Path): Path = {
    val left = Files.writeString(folder.resolve("rank-0"), "json\n1")
    val results = RankResult.keep(Seq(RankOutcome(0, "h", "finished", None)), _ => Some(left.toString))
    val kept = Path.of(results.head.path.get)
    assert(!Files.exists(left) && Files.exists(kept) && results.head.json.contains("1"))
    kept
  }

  test("a result that went with its application says so") {
    withFolder { folder =>
      val gone = new RankResult(RankOutcome(0, "h", "finished", None), Some(s"$folder/rank-0"), null)
      val refused = intercept[IllegalStateException](gone.json)
      assert(refused.getMessage.startsWith("the results were removed when the Spark application stopped"), "JAR-6")
    }
  }

  test("cancel ends the ranks with the reason, and a run that is over stays as it is") {
    withFolder { folder =>
      val run = distributor().start(waiting(folder))
      eventually(assert(run.reports.size == 2))
      run.cancel("seen enough")
      val failed = ended(run)
      assert(failed.kind == "cancelled" && failed.message.endsWith("seen enough"), failed.message)
      assert(failed.ranks.map(_.state) == Seq("stopped", "stopped"))
      Files.createFile(folder.resolve("go"))
      val other = distributor().start(waiting(folder))
      assert(other.result(Soon).resultJson.contains("0"))
      other.cancel()
      assert(other.result().resultJson.contains("0"))
    }
  }

  test("what is wrong is thrown by start itself") {
    val refused =
      intercept[IllegalArgumentException](distributor().withMaxRestarts(-1).startProgram(Seq("/bin/true")))
    assert(refused.getMessage.contains("spark.phalanx.maxRestarts"), "RUN-2")
    intercept[java.io.FileNotFoundException](distributor().start("no-such-file.py"))
  }

  test("a bad setting that a distributor overrides is nobody's trouble") {
    Cluster.spark.conf.set("spark.phalanx.maxRestarts", "many")
    try {
      distributor().withMaxRestarts(1).runProgram(Seq("/bin/true"))
      intercept[IllegalArgumentException](distributor().runProgram(Seq("/bin/true")))
    } finally Cluster.spark.conf.unset("spark.phalanx.maxRestarts")
  }

  test("a killed rank starts again in place, and is counted") {
    withFolder { folder =>
      val file = python(
        folder,
        "killed.py",
        """import os, signal
          |import phalanx
          |if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
          |    os.kill(os.getpid(), signal.SIGKILL)
          |phalanx.set_result(int(os.environ["TORCHELASTIC_RESTART_COUNT"]))"""
      )
      var result: TrainingResult = null
      val output = printed { result = distributor().withMaxRestarts(1).run(file) }
      assert(result.resultJson.contains("1"))
      val line = "[phalanx] restart 1 of 1: rank 1 "
      assert(output.linesIterator.count(_.startsWith(line)) == 1, output)
      assert(!output.contains("submitted again"), output)
      val failed = intercept[TrainingException](distributor().withMaxRestarts(1).withRestartOn("hang").run(file))
      assert(failed.kind == "signal" && failed.restarts == 0)
    }
  }

  for {
    (gang, how) <- Seq("barrier" -> "the Spark stage is submitted again", "tasks" -> "1 of 2 tasks is replaced")
  } test(s"after the loss of an executor, $how") {
    withFolder { folder =>
      val file = python(
        folder,
        "lost.py",
        s"""import os, pathlib, time
           |import phalanx
           |first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
           |name = "$folder/" + os.environ["RANK"] + ("" if first else "-again")
           |def proc(pid, file):
           |    return pathlib.Path("/proc/%d/%s" % (pid, file)).read_text()
           |above = os.getpid()
           |while proc(above, "comm").strip() != "java":
           |    above = int(proc(above, "stat").rpartition(")")[2].split()[1])
           |pathlib.Path(name + ".new").write_text(str(above))
           |os.rename(name + ".new", name)
           |if first:
           |    time.sleep(60)
           |phalanx.set_result("again")"""
      )
      val output = printed {
        val run = distributor().withGang(gang).withMaxRestarts(1).start(file)
        val names = Seq("0", "1").map(folder.resolve)
        eventually(assert(names.forall(Files.exists(_))))
        // The first JVM above a rank is its executor.
        ProcessHandle.of(Files.readString(names(1)).trim.toLong).get.destroyForcibly()
        assert(run.result(Soon).resultJson.contains("\"again\""))
      }
      assert(output.contains(s"; $how"), output)
    }
  }
}
