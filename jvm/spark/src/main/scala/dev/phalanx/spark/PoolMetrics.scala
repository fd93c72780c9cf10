package dev.phalanx.spark

import com.codahale.metrics.{Gauge, MetricRegistry}

/** What the warm pools of an executor take.
  *
  * METRIC-3: `pools.count`; `pools.bytes`, their resident memory, of which ranks share most; and `pools.forks`, how
  * many runs had their ranks from a pool.
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
