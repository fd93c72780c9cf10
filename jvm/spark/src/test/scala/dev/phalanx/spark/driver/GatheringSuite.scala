package dev.phalanx.spark.driver

import java.util.concurrent.ConcurrentLinkedQueue

import scala.jdk.CollectionConverters._

import dev.phalanx.spark.BarrierRunner
import dev.phalanx.spark.support.Cluster.Going
import dev.phalanx.spark.support.PhalanxSuite

class GatheringSuite extends PhalanxSuite {
  private def entered(): Gathering.Turn = Gathering.enter(() => true).get

  test("gangs gather one at a time, in the order in which they came") {
    val first = entered()
    val order = new ConcurrentLinkedQueue[Int]
    val others = (1 to 3).map { number =>
      val asked = new java.util.concurrent.CountDownLatch(1)
      val going = new Going({
        val turn = Gathering.enter { () => asked.countDown(); true }.get
        order.add(number)
        Thread.sleep(5)
        turn.close()
      })
      asked.await()
      going
    }
    assert(order.isEmpty && first.isHeld)
    first.close()
    others.foreach(_.end().get)
    assert(order.asScala.toSeq == Seq(1, 2, 3), "JAR-28")
  }

  test("whoever gives up, or is interrupted, leaves the line") {
    val first = entered()
    try {
      assert(Gathering.enter(() => false).isEmpty)
      val waits = new Going(
        try entered().isHeld
        catch { case _: InterruptedException => false }
      )
      waits.interrupt()
      assert(!waits.end().get)
    } finally first.close()
    first.close()
    entered().close()
  }

  test("the Python driver takes turns with the others, and a turn that it hasn't is nobody's") {
    BarrierRunner.leaveGang()
    assert(BarrierRunner.enterGang(0))
    assert(!BarrierRunner.enterGang(50))
    val next = new Going(entered())
    BarrierRunner.leaveGang()
    val turn = next.end().get
    BarrierRunner.leaveGang()
    assert(turn.isHeld && !BarrierRunner.enterGang(0))
    turn.close()
  }
}
