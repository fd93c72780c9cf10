package dev.phalanx.spark.metrics

import com.codahale.metrics.{Gauge, MetricRegistry}

import dev.phalanx.spark.jni.Core

/** What the warm pools of an executor take.
  *
  * JAR-18 (pool-metrics): there are `pools.count`; `pools.bytes`, the pools' resident memory, of which ranks share
  * most; and `pools.forks`, the number of runs that had their ranks from a pool.
  */
private[spark] object PoolMetrics {
  def register(registry: MetricRegistry): Unit =
    Seq("pools.count", "pools.bytes", "pools.forks").zipWithIndex.foreach { case (name, index) =>
      registry.register(
        name,
        new Gauge[java.lang.Long] { override def getValue: java.lang.Long = Core(_.poolUsage())(index) }
      )
    }
}
