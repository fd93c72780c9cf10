package dev.phalanx.spark.node

import java.util.concurrent.TimeUnit

import dev.phalanx.spark.TrainingException

/** A node that runs in this JVM. */
final private[spark] class LiveNode {
  @volatile private var ending: String = _

  /** Why it has to end; null while it may go on. */
  def endingBecause: String = ending

  private[node] def end(reason: String): Unit = ending = reason
}

/** The nodes that run in this JVM.
  *
  * JAR-20 (all-end): while `endAll` waits, no node starts, and each node that it found is asked to end until it has.
  * Nodes that start later know nothing of it: a driver's JVM may go on, with another application.
  */
private[spark] object LiveNodes {
  private var running = Set.empty[LiveNode]
  private var ending: Option[String] = None

  def count: Int = synchronized(running.size)

  /** Runs a node; refused while all are to end. */
  def run[A](node: LiveNode => A): A = {
    val live = new LiveNode
    synchronized {
      ending.foreach(reason => throw new TrainingException("cancelled", reason))
      running += live
    }
    try node(live)
    finally
      synchronized {
        running -= live
        notifyAll()
      }
  }

  /** Asks all nodes to end and waits for them; whether they did in time, and before an interrupt. */
  def endAll(reason: String, timeoutMillis: Long): Boolean = synchronized {
    ending = Some(reason)
    running.foreach(_.end(reason))
    val deadline = System.nanoTime + TimeUnit.MILLISECONDS.toNanos(timeoutMillis)
    var left = timeoutMillis
    try
      while (running.nonEmpty && left > 0) {
        wait(left)
        left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime)
      }
    finally ending = None
    running.isEmpty
  }
}
