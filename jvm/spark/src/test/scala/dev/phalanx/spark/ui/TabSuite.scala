package dev.phalanx.spark.ui

import dev.phalanx.spark.support.{Cluster, PhalanxSuite, SparkUi}

/** The tab in the UI of a real application. */
class TabSuite extends PhalanxSuite {

  test("the tab is in Spark's UI, and has the runs that were posted") {
    Cluster.spark
    RunPosts.offer(Samples.run("tab-1").toString)
    eventually(assert(SparkUi.get("/phalanx/json").contains("tab-1")))
    assert(SparkUi.get("/jobs/").contains("""href="/phalanx/""""), "TAB-1")
    val list = SparkUi.get("/phalanx/")
    assert(list.contains("""href="/jobs/"""") && list.contains("run/?id=tab-1"))
    val page = SparkUi.get("/phalanx/run/?id=tab-1")
    assert(page.contains("Phalanx: train") && page.contains("aria-label=\"timeline\""))
    assert(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script>alert"), "PAGE-1")
    assert(SparkUi.get("/phalanx/run/json?id=tab-1").contains("\"world_size\""))
    assert(SparkUi.get("/phalanx/run/?id=<script>alert(1)</script>".replace("<", "%3C").replace(">", "%3E"))
      .contains("There is no such run"))
  }
}
