package dev.phalanx.spark

import java.time.Duration

import dev.phalanx.spark.support.PhalanxSuite

class OptionsSuite extends PhalanxSuite {
  private val careful = new Options().withMaxRestarts(2).withHangTimeout(Duration.ofMinutes(10))

  test("options are values that nobody changes") {
    val more = careful.withLogs(0, 3).withEnv(Map("TOKEN" -> "hidden"))
    assert(careful == new Options().withHangTimeout(Duration.ofMinutes(10)).withMaxRestarts(2))
    assert(careful != more)
    assert(more.settings("spark.phalanx.logs") == "0,3")
    assert(new Options().withGang("tasks").settings == Map("spark.phalanx.gang" -> "tasks"))
    assert(
      more.toString == "Options(spark.phalanx.hangTimeout=600000ms, spark.phalanx.logs=0,3, " +
        "spark.phalanx.maxRestarts=2, env=[TOKEN])"
    )
  }

  test("others go over those that there are, and variables are added") {
    val base = careful.withEnv(Map("A" -> "1", "B" -> "1")).withGrace(Duration.ofSeconds(1))
    val changed = base.withOptions(new Options().withMaxRestarts(5).withEnv(java.util.Map.of("B", "2")))
    assert(changed == careful.withGrace(Duration.ofSeconds(1)).withMaxRestarts(5).withEnv(Map(
      "A" -> "1",
      "B" -> "2"
    )))
  }
}
