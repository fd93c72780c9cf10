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
    assert((run.name, run.state, run.over, run.seconds) == (("train", "failed", true, 60.25)))
    assert((run.worldSize, run.restarts, run.step) == ((4, 1, Some(120L -> Some(200L)))))
    assert(run.cause.contains("<b>bad</b>"))
  }

  test("an event of a later version is read as far as it goes") {
    val run = RunSnapshot.of(read(Samples.line("event-later.json")).snapshot)
    assert(run == RunSnapshot("", "paused", 0, 0, None, 0, ""), "TAB-9")
    assert(!run.over)
  }

  test("an event is only in the log if it says so, and its class needs nothing but Java 8") {
    assert(!new RunEvent(Samples.snapshot, false).logEvent)
    Seq(classOf[RunEvent], classOf[PhalanxHistory]).foreach { of =>
      val bytes = of.getResourceAsStream(s"${of.getSimpleName}.class").readAllBytes()
      assert(bytes(7) == 52, s"TAB-5: ${of.getName} is of class version ${bytes(7)}")
    }
  }
}
