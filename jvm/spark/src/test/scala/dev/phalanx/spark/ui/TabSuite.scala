package dev.phalanx.spark.ui

import java.nio.file.Files

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.support.Cluster.{Going, distributor}
import dev.phalanx.spark.support.{Cluster, PhalanxSuite, SparkUi}

/** The tab in the UI of a real application. */
class TabSuite extends PhalanxSuite {

  test("the tab is in Spark's UI, and has the runs that were posted") {
    Cluster.spark
    RunPosts.tell(Samples.run("tab-1").toString)
    eventually(assert(SparkUi.get("/phalanx/json").contains("tab-1")))
    assert(SparkUi.get("/jobs/").contains("""href="/phalanx/""""), "TAB-2")
    val list = SparkUi.get("/phalanx/")
    assert(list.contains("""href="/jobs/"""") && list.contains("run/?id=tab-1"))
    val page = SparkUi.get("/phalanx/run/?id=tab-1")
    assert(page.startsWith("<!DOCTYPE html><html") && page.trim.endsWith("</html>"))
    assert(page.contains("Phalanx: train") && page.contains("aria-label=\"timeline\""))
    assert(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script>alert"), "TAB-14")
    assert(SparkUi.get("/phalanx/run/json?id=tab-1").contains("\"world_size\""))
    assert(SparkUi.get("/phalanx/run/?id=<script>alert(1)</script>".replace("<", "%3C").replace(">", "%3E"))
      .contains("There is no such run"))
  }

  private def runs = PhalanxSuite.rows(Json.read(SparkUi.get("/phalanx/json")).get("runs"))

  private def named(name: String) = runs.find(_.at("/snapshot/name").asText("") == name)

  test("a training of two ranks is in the tab while it runs and when it is over, with its stage") {
    withFolder { folder =>
      val go = folder.resolve("go")
      val file = python(
        folder,
        "seen.py",
        s"""import os, time, phalanx
           |phalanx.report(step=3, of=40, loss=0.5)
           |print("<script>alert(1)</script>", flush=True)
           |while not os.path.exists("$go"):
           |    time.sleep(0.02)
           |""".stripMargin
      )
      val going = new Going(distributor().run(file))
      eventually {
        val run = named("seen.py").get
        assert(run.at("/snapshot/state").asText == "running" && run.get("stages").size == 1)
        val page = SparkUi.get(s"/phalanx/run/?id=${run.get("run").asText}")
        assert(page.contains("3 of 40") && page.contains("&lt;script&gt;alert(1)") && page.contains("Reload every"))
        assert(page.contains("<th>Executor</th>"))
      }
      Files.createFile(go)
      going.end().get
      eventually(assert(named("seen.py").get.at("/snapshot/state").asText == "succeeded"))
      val stage = named("seen.py").get.get("stages").get(0).asInt
      assert(SparkUi.get(s"/stages/stage/?id=$stage&attempt=0").contains(s"Details for Stage $stage"))
    }
  }

  test("a run that failed has its cause in the tab") {
    intercept[TrainingException](distributor().runProgram(Seq("/bin/sh", "-c", "echo oh; exit 3 # fails")))
    eventually {
      val run = named("sh").get
      assert(run.at("/snapshot/state").asText == "failed")
      val page = SparkUi.get(s"/phalanx/run/?id=${run.get("run").asText}")
      assert(page.contains("Failed: rank") && page.contains("exited with code 3") && page.contains("oh"))
    }
  }
}
