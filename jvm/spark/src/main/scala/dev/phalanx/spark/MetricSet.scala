package dev.phalanx.spark

import com.codahale.metrics.{Gauge, MetricRegistry}

/** What happened on an executor since it last told the driver. Times in microseconds. */
final private[spark] case class MetricChange(
    executor: String,
    started: Long = 0,
    restarted: Long = 0,
    ended: Long = 0,
    failed: Long = 0,
    lines: Long = 0,
    bytes: Long = 0,
    joins: Seq[Long] = Vector.empty,
    starts: Seq[Long] = Vector.empty
)

/** Phalanx's metrics in one registry of Spark's: an executor's own, or at the driver those of all executors together.
  *
  * METRIC-2: `ranks.running`, `ranks.started`, `ranks.failed`, `ranks.restarted`, `logs.lines`, `logs.bytes`; and
  * histograms in milliseconds: `join.latency` (a node's start until all nodes had joined) and `start.latency` (a
  * node's start until a rank's process was there).
  */
final private[spark] class MetricSet(registry: MetricRegistry, running: () => Long) {
  private val started = registry.counter("ranks.started")
  private val failed = registry.counter("ranks.failed")
  private val restarted = registry.counter("ranks.restarted")
  private val lines = registry.counter("logs.lines")
  private val bytes = registry.counter("logs.bytes")
  private val joins = registry.histogram("join.latency")
  private val starts = registry.histogram("start.latency")
  registry.register(
    "ranks.running",
    new Gauge[java.lang.Long] { override def getValue: java.lang.Long = running() }
  )

  def add(change: MetricChange): Unit = {
    started.inc(change.started)
    restarted.inc(change.restarted)
    failed.inc(change.failed)
    lines.inc(change.lines)
    bytes.inc(change.bytes)
    change.joins.foreach(micros => joins.update(micros / 1000))
    change.starts.foreach(micros => starts.update(micros / 1000))
  }
}
