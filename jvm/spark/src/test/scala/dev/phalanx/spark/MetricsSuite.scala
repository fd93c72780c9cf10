package dev.phalanx.spark

import com.codahale.metrics.MetricRegistry
import org.apache.spark.scheduler.SparkListenerExecutorRemoved

class MetricsSuite extends PhalanxSuite {

  private def running(registry: MetricRegistry) = registry.getGauges.get("ranks.running").getValue

  test("an executor counts, and tells the driver what it has counted since") {
    val registry = new MetricRegistry
    var told = Seq.empty[MetricChange]
    var metrics: ExecutorMetrics = null
    metrics = new ExecutorMetrics("1", Some(new MetricSet(registry, () => metrics.running)), told :+= _)
    metrics.joined(5000)
    metrics.rankRestarted()
    metrics.rankStarted(9000)
    metrics.output(2, 20)
    metrics.output(3, 30)
    assert(running(registry) == 1)
    metrics.rankEnded(failed = true)
    metrics.nodeEnded()
    assert(running(registry) == 0)
    assert(registry.getCounters.get("ranks.failed").getCount == 1)
    assert(registry.getCounters.get("ranks.restarted").getCount == 1)
    assert(registry.getCounters.get("logs.bytes").getCount == 50)
    assert(registry.getHistograms.get("start.latency").getSnapshot.getMax == 9, "METRIC-2")
    assert(told.map(_.started).sum == 1 && told.map(_.ended).sum == 1 && told.map(_.lines).sum == 5)
    assert(told.map(_.restarted).sum == 1)
    assert(told.length == 4, "output alone is told once a second, and nothing is told twice")
  }

  test("a driver that can't be told costs a node nothing") {
    val metrics = new ExecutorMetrics("1", None, _ => throw new IllegalStateException("gone"))
    metrics.rankStarted(1)
    assert(metrics.running == 1, "METRIC-1")
  }

  test("the driver adds up executors, and forgets the ranks of one that is gone") {
    val registry = new MetricRegistry
    val cluster = new ClusterMetrics(registry)
    cluster.add(MetricChange("1", started = 2, joins = Seq(1000)))
    cluster.add(MetricChange("2", started = 3))
    assert(running(registry) == 5)
    cluster.onExecutorRemoved(SparkListenerExecutorRemoved(0, "2", "killed"))
    cluster.add(MetricChange("2", ended = 1))
    assert(running(registry) == 2)
    assert(registry.getCounters.get("ranks.started").getCount == 5)
  }
}
