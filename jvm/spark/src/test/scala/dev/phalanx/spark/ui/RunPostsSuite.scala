package dev.phalanx.spark.ui

import dev.phalanx.spark.support.PhalanxSuite

class RunPostsSuite extends PhalanxSuite {
  private var now = 0L
  private var events = Vector.empty[RunEvent]
  private var counted = 0
  private def posts() = {
    now = 0
    events = Vector.empty
    counted = 0
    new RunPosts(events :+= _, _ => counted += 1, () => now)
  }

  private def running(id: String = "a", attempt: Int = 0) =
    Samples.run(id, "state" -> "\"running\"", "attempt" -> attempt.toString).toString

  test("of a run that goes on there is an event a second, and one in ten in the log") {
    val posts = this.posts()
    (0 until 1000).foreach { tick =>
      now = tick * 100L
      posts.offer(running())
    }
    assert(events.size == 100, "TAB-7")
    assert(events.count(_.logEvent) == 10, "TAB-7")
    assert(counted == 1000, "each is counted")
  }

  test("a change of state or of the attempt is posted and logged at once") {
    val posts = this.posts()
    Seq(running(), running(attempt = 1), Samples.run("a").toString, running("b")).foreach(posts.offer)
    assert(events.map(_.logEvent) == Seq(true, true, true, true), "TAB-7")
  }

  test("the log of a large run gets at most a KiB a second") {
    val large = Samples.large("a", 100).toString
    var (posted, logged) = (0, 0)
    val posts = new RunPosts(event => { posted += 1; if (event.logEvent) logged += 1 }, _ => (), () => now)
    (0 until 300).foreach { second =>
      now = second * 1000L
      posts.offer(large)
    }
    assert(posted == 300)
    // the first is a change of its state
    assert(logged > 2 && (logged - 1) * large.length <= 300 * 1024, s"TAB-7: $logged of ${large.length}")
  }

  test("what can't be posted is an error of nobody's") {
    val posts = this.posts()
    Seq(null, "", "no json", "[]", "x" * (RunStore.MostChars + 1)).foreach(posts.offer)
    assert(events.isEmpty, "TAB-8")
    new RunPosts(_ => throw new NoSuchMethodError("an older bus"), _ => (), () => 0).offer(running())
    RunPosts.tell(running()) // no matter whether this JVM has an application
  }

  test("runs that it remembers are bounded") {
    val posts = this.posts()
    (0 until 1000).foreach(each => posts.offer(running(s"run-$each")))
    posts.offer(running("run-999"))
    posts.offer(running("run-0"))
    assert(events.size == 1001, "TAB-7: the newest is remembered, the oldest isn't")
  }
}
