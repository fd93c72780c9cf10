package dev.phalanx.spark.metrics

import dev.phalanx.spark.jni.Core

/** A metric: its name in Spark's metrics, and how its changes add up.
  *
  * @param kind `gauge`, `counter` or `histogram`
  * @param source who tells it: each `node` what it has seen, or the driver of a `run`
  */
final private[spark] case class Metric(name: String, kind: String, source: String)

private[spark] object Metric {

  /** All of them, as the core declares them; a change names one by its place. */
  lazy val declared: IndexedSeq[Metric] =
    Core(_.metrics()).grouped(3).map(of => Metric(of(0), of(1), of(2))).toVector
}

/** What changed on an executor; of a histogram the new value. */
final private[spark] case class MetricChange(executor: String, by: Seq[(Metric, Long)])
