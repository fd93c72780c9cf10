package dev.phalanx.spark.scoring

import java.util.concurrent.atomic.AtomicLong

import com.codahale.metrics.{Gauge, MetricRegistry}

/** What the models of an executor have done, for the plugin's metrics.
  *
  * JAR-31 (scoring-metrics): there are `predict.rows`, `predict.batches`, `predict.seconds`, the time in models, and
  * `predict.waiting.seconds`, the time that tasks waited for them.
  */
private[spark] object ScoringCounts {
  private val rows, batches, nanos, waiting = new AtomicLong

  def add(scored: Long, inBatches: Long, took: Long): Unit = {
    rows.addAndGet(scored)
    batches.addAndGet(inBatches)
    nanos.addAndGet(took)
    ()
  }

  /** A task has waited. */
  def addWait(took: Long): Unit = {
    waiting.addAndGet(took)
    ()
  }

  def register(registry: MetricRegistry): Unit = {
    gauge(registry, "predict.rows")(rows.doubleValue)
    gauge(registry, "predict.batches")(batches.doubleValue)
    gauge(registry, "predict.seconds")(nanos.doubleValue / 1e9)
    gauge(registry, "predict.waiting.seconds")(waiting.doubleValue / 1e9)
  }

  private def gauge(registry: MetricRegistry, name: String)(value: => Double): Unit = {
    registry.register(name, new Gauge[java.lang.Double] { override def getValue: java.lang.Double = value })
    ()
  }
}
