package dev.phalanx.spark.metrics

import com.codahale.metrics.MetricRegistry
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}

/** The driver's sums over all executors. When an executor is gone, its ranks no longer count as running. */
final private[spark] class ClusterMetrics(registry: MetricRegistry, declared: Seq[Metric]) extends SparkListener {
  private var gone = Set.empty[String]
  private val metrics = new MetricSet(registry, declared)

  def add(change: MetricChange): Unit = synchronized {
    metrics.add(change)
    if (gone(change.executor)) metrics.forget(change.executor)
  }

  override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit = synchronized {
    gone += removed.executorId
    metrics.forget(removed.executorId)
  }
}
