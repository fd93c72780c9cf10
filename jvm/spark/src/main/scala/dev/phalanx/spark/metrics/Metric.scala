package dev.phalanx.spark.metrics

import dev.phalanx.spark.jni.Core

/** A metric of nodes: its name in Spark's metrics, and how its changes add up.
  *
  * @param kind `gauge`, `counter` or `histogram`
  */
final private[spark] case class Metric(name: String, kind: String)

private[spark] object Metric {

  /** All of them, as the core declares them; a change names one by its place. */
  lazy val declared: IndexedSeq[Metric] =
    Core(_.metrics()).grouped(2).map(pair => Metric(pair(0), pair(1))).toVector
}

/** What changed on an executor; of a histogram the new value. */
final private[spark] case class MetricChange(executor: String, by: Seq[(Metric, Long)])
