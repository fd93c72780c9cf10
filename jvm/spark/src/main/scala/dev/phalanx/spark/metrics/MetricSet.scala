package dev.phalanx.spark.metrics

import com.codahale.metrics.{Gauge, MetricRegistry}

/** Phalanx's metrics in one registry of Spark's: an executor's own, or, at the driver, the sums over all executors.
  *
  * JAR-16 (all-declared): the registry has each of these metrics from the start, under its name. Histograms are in
  * milliseconds.
  */
final private[spark] class MetricSet(registry: MetricRegistry, metrics: Seq[Metric]) {
  private var levels = Map.empty[(String, Metric), Long]
  metrics.foreach(register)

  def add(change: MetricChange): Unit = change.by.foreach {
    case (metric @ Metric(_, "gauge", _), by)  => raise(change.executor, metric, by)
    case (Metric(name, "counter", _), by)      => registry.counter(name).inc(by)
    case (Metric(name, "histogram", _), value) => registry.histogram(name).update(value)
    case (other, _) => throw new IllegalStateException(s"an unknown kind of metric: $other")
  }

  /** Takes back what an executor, which is gone, has raised gauges by. */
  def forget(executor: String): Unit = synchronized {
    levels = levels.filterNot { case ((of, _), _) => of == executor }
  }

  private def raise(executor: String, metric: Metric, by: Long): Unit = synchronized {
    levels += (executor, metric) -> (levels.getOrElse((executor, metric), 0L) + by)
  }

  private def level(metric: Metric): Long = synchronized {
    levels.collect { case ((_, of), level) if of == metric => level }.sum
  }

  private def register(metric: Metric): Unit = metric.kind match {
    case "gauge" =>
      val gauge = new Gauge[java.lang.Long] { override def getValue: java.lang.Long = level(metric) }
      registry.register(metric.name, gauge): Unit
    case "counter" => registry.counter(metric.name): Unit
    case _         => registry.histogram(metric.name): Unit
  }
}
