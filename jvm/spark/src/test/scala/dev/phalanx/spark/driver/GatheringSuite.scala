package dev.phalanx.spark.driver

import dev.phalanx.spark.support.PhalanxSuite

class GatheringSuite extends PhalanxSuite {
  private def joined(tag: String) = Gathering.join(Set(tag))

  test("gangs gather one at a time, in the order in which they came") {
    val turns = (0 to 3).map(number => joined(number.toString))
    turns.indices.foreach { number =>
      assert(turns.map(_.isHeld) == turns.indices.map(_ == number), "JAR-28")
      assert(turns.indices.filter(at => Gathering.isGathering(at.toString)) == Seq(number))
      turns(number).close()
      turns(number).close()
    }
    assert(!turns.exists(_.isHeld), "a turn that is over stays so")
  }

  test("whoever leaves the line before its turn holds up nobody") {
    val (first, second, third) = (joined("a"), joined("b"), joined("c"))
    second.close()
    first.close()
    assert(third.isHeld)
    third.close()
  }

  test("what Spark says of a gang that it cancels reaches those in the line that it would have cancelled, too") {
    def cancelled(said: String) = {
      val turns = Seq(Some("mine"), Some("others"), None).map(group => Gathering.join(Set("tag"), group))
      try {
        Gathering.cancelWith(said)
        turns.map(_.isGivenUp)
      } finally turns.foreach(_.close())
    }
    assert(cancelled("Job 3 cancelled part of cancelled job group mine") == Seq(true, false, false), "STAGE-11")
    assert(cancelled("Job 3 cancelled as part of cancellation of all jobs") == Seq(true, true, true), "STAGE-11")
    assert(cancelled("Job 3 cancelled") == Seq(false, false, false), "STAGE-11")
  }
}
