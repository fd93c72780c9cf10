package dev.phalanx.spark

import java.util.concurrent.TimeUnit

import scala.util.control.NonFatal

/** Counts what an executor's nodes do, and tells the driver: ranks' starts and ends at once, output once a second.
  *
  * @param own the executor's own metrics; `None` where they would be the driver's a second time (a local master)
  * @param send to the driver; does not wait, and may fail
  */
final private[spark] class ExecutorMetrics(executor: String, own: Option[MetricSet], send: MetricChange => Unit)
    extends NodeMetrics {
  private val SendEveryNanos = TimeUnit.SECONDS.toNanos(1)
  private val none = MetricChange(executor)
  private var unsent = none
  private var live = 0L
  private var sentAt = System.nanoTime

  /** How many ranks run here now. */
  def running: Long = synchronized(live)

  override def joined(micros: Long): Unit = count(none.copy(joins = Vector(micros)), now = true)
  override def rankStarted(micros: Long): Unit =
    count(none.copy(started = 1, starts = Vector(micros)), now = true)
  override def rankRestarted(): Unit = count(none.copy(restarted = 1), now = true)
  override def rankEnded(failed: Boolean): Unit =
    count(none.copy(ended = 1, failed = if (failed) 1 else 0), now = true)
  override def output(lines: Long, bytes: Long): Unit =
    count(none.copy(lines = lines, bytes = bytes), now = false)
  override def nodeEnded(): Unit = count(none, now = true)

  private def count(change: MetricChange, now: Boolean): Unit = synchronized {
    own.foreach(_.add(change))
    live += change.started - change.ended
    unsent = MetricChange(
      executor,
      unsent.started + change.started,
      unsent.restarted + change.restarted,
      unsent.ended + change.ended,
      unsent.failed + change.failed,
      unsent.lines + change.lines,
      unsent.bytes + change.bytes,
      unsent.joins ++ change.joins,
      unsent.starts ++ change.starts
    )
    if (unsent != none && (now || System.nanoTime - sentAt > SendEveryNanos)) {
      try send(unsent)
      catch { case NonFatal(_) => () } // the driver is going; its metrics go with it
      unsent = none
      sentAt = System.nanoTime
    }
  }
}
