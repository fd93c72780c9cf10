package dev.phalanx.spark.ui

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.support.PhalanxSuite

/** What stands in event logs. The samples are logs that somebody keeps: they are read for ever. */
class RunEventSuite extends PhalanxSuite {

  private def read(line: String) = SparkEvents.read(line).asInstanceOf[RunEvent]

  test("a stored event of version 1 is read, and written as it was") {
    val line = Samples.line("event-v1.json")
    val event = read(line)
    assert(event.version == 1 && event.logEvent, "TAB-4")
    assert(Json.read(SparkEvents.written(event)) == Json.read(line), "TAB-4")
    val run = RunSnapshot.of(event.snapshot)
    assert((run.run, run.name, run.stage, run.state) == (("9f2c41d07b6e4a55", "train", "jvm", "failed")))
    assert(run.over && run.seconds == 60.25 && run.attempt == 1 && run.worldSize == 4 && run.ranksLeftOut == 1)
    assert(run.phases.map(_.name).contains("training") && run.phases.head.end.contains(1790000002.0))
    assert(run.restarts == Seq(Restart(1790000030.0, "rank 1 (host-b) was killed by signal 9")))
    assert(run.ranks(1).collectiveShare.contains(0.61) && run.ranks(1).dataShare.isEmpty && run.slow == Set(1))
    assert(run.ranks.head.values == Seq("epoch" -> "1", "loss" -> "0.7500") && run.ranks(2).host.isEmpty)
    assert(run.step.contains(120L -> Some(200L)) && run.losses.last == (120.0 -> 0.75))
    assert(run.failure.exists(failure => failure.rank.contains(1) && failure.cause.contains("<b>bad</b>")))
  }

  test("an event of a later version is read as far as it goes") {
    val run = RunSnapshot.of(read(Samples.line("event-later.json")).snapshot)
    assert(run.run == "later" && run.state == "paused" && !run.over && run.failure.isEmpty, "TAB-9")
    assert(run.ranks.map(_.rank) == Seq(0, -1) && run.ranks.head.step.isEmpty, "TAB-9")
    assert(run.lines.isEmpty && run.losses == Seq(2.0 -> 0.5) && run.phases == Seq(PhaseSpan("training", 5, None)))
  }

  test("an event is only in the log if it says so, and its class needs nothing but Java 8") {
    assert(!new RunEvent(Samples.snapshot, false).logEvent)
    Seq(classOf[RunEvent], classOf[PhalanxHistory]).foreach { of =>
      val bytes = of.getResourceAsStream(s"${of.getSimpleName}.class").readAllBytes()
      assert(bytes(7) == 52, s"TAB-5: ${of.getName} is of class version ${bytes(7)}")
    }
  }
}
