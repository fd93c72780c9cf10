package dev.phalanx.spark

import com.codahale.metrics.MetricRegistry
import org.apache.spark.scheduler.{SparkListener, SparkListenerExecutorRemoved}

/** The driver's sums over all executors. The ranks of an executor that is gone don't run any more. */
final private[spark] class ClusterMetrics(registry: MetricRegistry) extends SparkListener {
  private var running = Map.empty[String, Long]
  private var gone = Set.empty[String]
  private val metrics = new MetricSet(registry, () => synchronized(running.values.sum))

  def add(change: MetricChange): Unit = synchronized {
    if (!gone(change.executor))
      running += change.executor -> (running.getOrElse(change.executor, 0L) + change.started - change.ended)
    metrics.add(change)
  }

  override def onExecutorRemoved(removed: SparkListenerExecutorRemoved): Unit = synchronized {
    running -= removed.executorId
    gone += removed.executorId
  }
}
