package dev.phalanx.spark.metrics

import scala.util.control.NonFatal

/** Counts what an executor's nodes do, and tells the driver.
  *
  * @param own the executor's own metrics; `None` where they would count a second time at the driver (a local master)
  * @param send sends to the driver; it does not wait, and may fail
  */
final private[spark] class ExecutorMetrics(
    executor: String,
    declared: IndexedSeq[Metric],
    own: Option[MetricSet],
    send: MetricChange => Unit
) extends NodeMetrics {

  override def observed(changes: Array[Long]): Unit = {
    val by = changes.grouped(2).map(pair => declared(pair(0).toInt) -> pair(1)).toVector
    val change = MetricChange(executor, by)
    own.foreach(_.add(change))
    try send(change)
    catch { case NonFatal(_) => () } // the driver is going; its metrics go with it
  }
}
