package dev.phalanx.spark

import java.util.concurrent.TimeUnit

/** The nodes that run in this JVM.
  *
  * LIVE-1: while `endAll` waits, and after it if nodes are left, no node starts and every node is asked to end.
  */
private[spark] object LiveNodes {
  private var running = 0
  @volatile private var ending: String = _

  /** Why all nodes have to end; null while they may go on. */
  def endingBecause: String = ending

  def count: Int = synchronized(running)

  /** Runs a node; refused while all are to end. */
  def run[A](node: => A): A = {
    synchronized {
      if (ending != null) throw new TrainingException("cancelled", ending)
      running += 1
    }
    try node
    finally
      synchronized {
        running -= 1
        notifyAll()
      }
  }

  /** Asks all nodes to end and waits for them; whether they did in time. */
  def endAll(reason: String, timeoutMillis: Long): Boolean = synchronized {
    ending = reason
    val deadline = System.nanoTime + TimeUnit.MILLISECONDS.toNanos(timeoutMillis)
    var left = timeoutMillis
    while (running > 0 && left > 0) {
      wait(left)
      left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime)
    }
    if (running == 0) ending = null
    running == 0
  }
}
