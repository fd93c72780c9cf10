package dev.phalanx.spark.driver

import dev.phalanx.spark.BarrierRunner
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

  test("the Python driver takes turns with the others") {
    val first = joined("a")
    val python = BarrierRunner.gather("b")
    val third = joined("c")
    assert(first.isHeld && !python.isHeld && !third.isHeld)
    first.close()
    assert(!third.isHeld && python.isHeld)
    python.close()
    assert(third.isHeld)
    third.close()
  }

  test("one that asks for its turn no more loses it") {
    val gone = Gathering.join(Set("a"), leaseMillis = 50)
    val next = joined("b")
    assert(!next.isHeld)
    Thread.sleep(100)
    assert(next.isHeld, "JAR-29")
    assert(!gone.isHeld)
    next.close()
    assert(gone.isHeld, "it was not gone, and came back")
    gone.close()
  }
}
