package dev.phalanx.spark

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

/** A thread that hosts or submits the nodes of a run.
  *
  * STAGE-1: a stage tells the hub when it is over, once. STAGE-2: the caller's Spark properties hold for the stage,
  * and nothing that the stage sets is left behind in the caller's: the thread is made in the caller's, and has a
  * copy.
  */
abstract private[spark] class Stage(what: String) {
  private val log = LoggerFactory.getLogger("dev.phalanx")
  @volatile private var cancelled = false
  @volatile private var failure: Throwable = _
  private var hub: Hub = _
  private val thread = new Thread(() => main(), "phalanx-stage")
  thread.setDaemon(true)

  /** Runs all nodes to their end. */
  protected def run(hub: Hub): Unit

  /** Why the stage was to end; null while it may go on. */
  protected def cancellation: String = if (cancelled) "the run is over" else null

  /** Begins; returns at once. */
  def start(hub: Hub): Unit = {
    this.hub = hub
    thread.start()
  }

  /** Ends the stage from outside; how it ends is then no news. */
  def cancel(): Unit = cancelled = true

  /** Waits for the end; false if it has not come. */
  def join(millis: Long): Boolean = {
    thread.join(millis)
    !thread.isAlive
  }

  /** What ended the stage, where it did not end well; null else. */
  def error: Throwable = failure

  private def main(): Unit =
    try {
      val problem =
        try {
          run(hub)
          None
        } catch {
          case thrown: Throwable if cancelled =>
            log.debug("The stage ended", thrown)
            None
          case thrown: Throwable =>
            failure = thrown
            Some(thrown)
        }
      val told = problem.map(thrown => s"$what failed: ${StageFailure.explain(thrown)}")
      if (problem.exists(StageFailure.isCancellation)) {
        told.foreach(hub.stop)
        hub.stageEnded(None)
      } else hub.stageEnded(told)
    } catch {
      case NonFatal(thrown) => log.debug("The run is over, and the hub closed", thrown)
    }
}
