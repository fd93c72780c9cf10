package dev.phalanx.spark.ui

import org.apache.spark.util.kvstore.InMemoryStore

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.support.PhalanxSuite

/** The pages, from events alone. */
class UiPagesSuite extends PhalanxSuite {
  private val store = new RunStore(new InMemoryStore)
  private val (list, page) = (new RunListPage(store), new RunPage(store))
  private val none: UiPage.Parameters = _ => null
  private def of(run: String, more: (String, String)*): UiPage.Parameters =
    name => (more :+ ("id" -> run)).toMap.getOrElse(name, null)
  private def html(parameters: UiPage.Parameters) = page.html(parameters).mkString

  test("a list without runs says so, and one with runs has a link to each") {
    assert(new RunListPage(new RunStore(new InMemoryStore)).html(none).mkString.contains("No run has begun yet."))
    store.take(Samples.event(Samples.run("a b&c", "name" -> "\"<i>train</i>\"")))
    val text = list.html(none).mkString
    assert(
      text.contains("""href="run/?id=a+b%26c"""") && text.contains("&lt;i&gt;train&lt;/i&gt;"),
      "TAB-14 TAB-15"
    )
    assert(text.contains("120 of 200") && text.contains("failed") && !text.contains("<i>"), "TAB-14")
    assert(list.json(none).get("runs").get(0).get("snapshot").get("world_size").asInt == 4)
    assert(!list.json(none).get("runs").get(0).get("snapshot").has("ranks"))
    assert(list.json(of("a b&c")).get("snapshot").get("ranks").size == 3)
  }

  test("a run's page has its timeline, restarts, ranks, lines and failure, and all of it as text") {
    store.take(Samples.event(Samples.run("f")))
    store.began("f", 0, Seq(12, 13))
    val text = html(of("f"))
    assert(!text.contains("<script") && !text.contains("<b>bad"), "TAB-14 TAB-16")
    assert(text.contains("[rank 1] &lt;script&gt;alert(1)&lt;/script&gt;"), "TAB-14")
    assert(text.contains("ValueError: &lt;b&gt;bad&lt;/b&gt; &amp; ugly"), "TAB-14")
    assert(text.contains("Failed: rank 1 on host-a") && text.contains("rank 1 (host-b) was killed by signal 9"))
    assert(text.contains("starting ranks: ") && text.contains("and 1 more rank"))
    assert(text.contains("""href="../../stages/stage/?id=13&amp;attempt=0""""), "TAB-15")
    assert(text.contains("61%") && text.contains("slow") && text.contains("epoch=1, loss=0.75"))
    assert(!text.contains("Reload every"), "a run that is over is not read again")
    assert(page.json(of("f")).get("stages").size == 2)
  }

  test("a state has the colour in the list that it has on the run's page") {
    Shown.Colors.foreach { case (state, color) =>
      store.take(Samples.event(Samples.run(state, "state" -> s"\"$state\"", "failure" -> "null")))
      assert(
        html(of(state)).contains(s"inline-block;background:$color;") && Shown.state(state).toString.contains(color),
        s"$state, TAB-14"
      )
    }
  }

  test("the page of a run that waits for slots says how many are free") {
    store.take(Samples.event(Samples.run("w", "waits_for" -> "\"waiting for 4 slots; 2 are free\"")))
    assert(html(of("w")).contains("waiting for 4 slots; 2 are free"))
  }

  test("names, hosts, states, causes and values that are markup are text") {
    val evil = "\"</td></style><script>x</script>\""
    store.take(Samples.event(Samples.run(
      "evil",
      "name" -> evil,
      "state" -> evil,
      "stage" -> evil,
      "phases" -> s"""[{"name":$evil,"start":1790000001}]""",
      "restarts" -> s"""[{"time":1790000001,"cause":$evil}]""",
      "ranks" -> s"""[{"rank":0,"host":$evil,"executor":$evil,"gpus":[$evil],"state":$evil,"values":{$evil:$evil}}]""",
      "failure" -> s"""{"cause":$evil,"rank":0,"host":$evil,"text":$evil}"""
    )))
    Seq(html(of("evil")), list.html(none).mkString).foreach { text =>
      assert(!text.contains("<script") && !text.contains("</td></style><"), "TAB-14")
    }
  }

  test("a run that goes on can be read again by itself, at most once a second") {
    store.take(Samples.event(Samples.run("goes", "state" -> "\"running\"", "ended" -> "null", "failure" -> "null")))
    assert(html(of("goes")).contains("""href="?id=goes&amp;refresh=5""""))
    assert(html(of("goes", "refresh" -> "5")).contains("""<meta http-equiv="refresh" content="5""""))
    Seq("0", "-1", "0.01", "x", "99999", "5;url=//evil").foreach { refresh =>
      assert(!html(of("goes", "refresh" -> refresh)).contains("http-equiv"), refresh)
    }
  }

  test("a run that isn't there, or of which little is known, has a page") {
    assert(html(of("nobody")).contains("There is no such run") && html(none).contains("There is no such run"))
    assert(page.json(none).get("version").asInt == 1)
    store.began("early", 5, Seq(1))
    store.take(Samples.event(SparkEvents.read(Samples.line("event-later.json")).asInstanceOf[RunEvent].snapshot))
    assert(html(of("early")).contains("No rank has a place yet."))
    assert(html(of("later")).contains("paused"))
    assert(list.html(none).mkString.contains("run/?id=early"))
  }

  test("a page is made once for a snapshot, however often it is asked for") {
    store.take(Samples.event(Samples.large("often", 1000)))
    def made() = page.html(of("often")).collectFirst { case drawn: scala.xml.Unparsed => drawn.data }.get
    val first = made()
    assert(made() eq first, "TAB-6")
    store.take(Samples.event(Samples.large("often", 1000).put("name", "another")))
    assert(made() ne first, "TAB-6")
    assert(page.title(of("often")) == "Phalanx: another")
  }

  test("a page of 1,000 ranks has them all, and is at most a megabyte") {
    store.take(Samples.event(Samples.large("large", 1000)))
    val text = html(of("large"))
    assert(text.contains("host-124.cluster.example") && text.contains("1,000 ranks on 125 hosts"))
    assert(text.contains("""class="phx sortable"""") && text.length < 500000, text.length.toString)
  }

  test("where the core can't be had, the page says so and has the run's state and its cause") {
    store.take(Samples.event(Samples.run("plain")))
    val why = "Phalanx's native library can't be loaded on linux/riscv64 with musl: <none>"
    val plain = new RunPage(store, None, _ => throw new TrainingException("start", why))
    val text = plain.html(of("plain")).mkString
    assert(
      text.contains("This run can't be drawn, so only its state is shown: ") && text.contains("musl: &lt;none&gt;"),
      "TAB-17"
    )
    assert(text.contains("failed") && text.contains("ValueError: &lt;b&gt;bad&lt;/b&gt; &amp; ugly"), "TAB-17")
    assert(text.contains("href=\"../\"") && !text.contains("phalanx-run"))
  }
}
