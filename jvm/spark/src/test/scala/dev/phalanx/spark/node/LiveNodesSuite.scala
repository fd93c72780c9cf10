package dev.phalanx.spark.node

import java.util.concurrent.CountDownLatch

import scala.util.Try

import dev.phalanx.spark.internal.JvmEnd
import dev.phalanx.spark.support.PhalanxSuite

class LiveNodesSuite extends PhalanxSuite {

  /** A node in a thread of its own, until `release`. */
  private final class Going {
    val release = new CountDownLatch(1)
    @volatile var live: LiveNode = _
    private val thread = new Thread(() =>
      LiveNodes.run { node =>
        live = node
        release.await()
      }
    )
    thread.start()
    eventually(assert(live != null))

    def end(): Unit = {
      release.countDown()
      thread.join()
    }
  }

  test("ending all nodes waits for them, and none starts meanwhile") {
    val running = new CountDownLatch(1)
    @volatile var second: Try[Unit] = null
    val node = new Thread(() =>
      LiveNodes.run { live =>
        running.countDown()
        while (live.endingBecause == null) Thread.sleep(5)
        second = Try(LiveNodes.run(_ => ()))
      }
    )
    node.start()
    running.await()
    assert(LiveNodes.endAll("the end", 20000), "JAR-20")
    assert(LiveNodes.count == 0)
    node.join()
    assert(second.failed.get.getMessage == "the end", "JAR-20")
    assert(LiveNodes.run(_ => 7) == 7)
  }

  test("a node that doesn't end is waited for no longer than was said, and disturbs no later one") {
    val node = new Going
    assert(!LiveNodes.endAll("the end", 100))
    assert(node.live.endingBecause == "the end", "JAR-20")
    assert(LiveNodes.run(later => Option(later.endingBecause)).isEmpty, "JAR-20")
    node.end()
    assert(LiveNodes.count == 0)
  }

  test("an interrupt ends the waiting for nodes, and stays set") {
    val node = new Going
    Thread.currentThread.interrupt()
    JvmEnd.interruptible(LiveNodes.endAll("the end", 20000): Unit)
    assert(Thread.interrupted() && LiveNodes.count == 1)
    node.end()
    assert(LiveNodes.run(_ => 7) == 7, "JAR-20")
  }
}
