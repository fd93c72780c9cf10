package dev.phalanx.spark

import java.util.concurrent.CountDownLatch

import scala.util.Try

class LiveNodesSuite extends PhalanxSuite {

  test("ending all nodes waits for them, and none starts meanwhile") {
    val running = new CountDownLatch(1)
    @volatile var second: Try[Unit] = null
    val node = new Thread(() =>
      LiveNodes.run {
        running.countDown()
        while (LiveNodes.endingBecause == null) Thread.sleep(5)
        second = Try(LiveNodes.run(()))
      }
    )
    node.start()
    running.await()
    assert(LiveNodes.endAll("the end", 20000), "LIVE-1")
    assert(LiveNodes.count == 0)
    node.join()
    assert(second.failed.get.getMessage == "the end", "LIVE-1")
    assert(LiveNodes.run(7) == 7)
  }

  test("nodes that don't end are waited for no longer than was said") {
    val release = new CountDownLatch(1)
    val running = new CountDownLatch(1)
    val node = new Thread(() =>
      LiveNodes.run {
        running.countDown()
        release.await()
      }
    )
    node.start()
    running.await()
    assert(!LiveNodes.endAll("the end", 100))
    assert(LiveNodes.endingBecause == "the end", "LIVE-1")
    release.countDown()
    node.join()
    assert(LiveNodes.endAll("the end", 20000))
  }
}
