package dev.phalanx.spark.metrics

import scala.jdk.CollectionConverters._

import com.codahale.metrics.MetricRegistry
import org.apache.spark.scheduler.SparkListenerExecutorRemoved

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.support.PhalanxSuite

class MetricsSuite extends PhalanxSuite {

  private def running(registry: MetricRegistry) = registry.getGauges.get("ranks.running").getValue

  private def change(executor: String, by: (String, Long)*) =
    MetricChange(executor, by.map { case (name, by) => Metric.declared.find(_.name == name).get -> by })

  private def packed(by: (String, Long)*) =
    by.flatMap { case (name, by) => Seq(Metric.declared.indexWhere(_.name == name).toLong, by) }.toArray

  test("every metric has its published name from the start") {
    val registry = new MetricRegistry
    new MetricSet(registry, Metric.declared)
    val names = Set(
      "ranks.running",
      "ranks.started",
      "ranks.failed",
      "ranks.restarted",
      "logs.lines",
      "logs.bytes",
      "join.latency",
      "start.latency",
      "restarts.replaced",
      "restarts.resized",
      "restarts.preempted",
      "lost.steps",
      "lost.time"
    )
    assert(registry.getNames.asScala == names, "JAR-16")
  }

  test("an executor counts, and tells the driver what it has counted") {
    val registry = new MetricRegistry
    var told = Seq.empty[MetricChange]
    val own = new MetricSet(registry, Metric.declared)
    val metrics = new ExecutorMetrics("1", Metric.declared, Some(own), told :+= _)
    metrics.observed(packed("ranks.restarted" -> 1, "ranks.running" -> 1, "start.latency" -> 9))
    metrics.observed(packed("logs.lines" -> 5, "logs.bytes" -> 50))
    assert(running(registry) == 1)
    metrics.observed(packed("ranks.running" -> -1, "ranks.failed" -> 1))
    assert(running(registry) == 0)
    assert(registry.getCounters.get("ranks.failed").getCount == 1)
    assert(registry.getCounters.get("ranks.restarted").getCount == 1)
    assert(registry.getCounters.get("logs.bytes").getCount == 50)
    assert(registry.getHistograms.get("start.latency").getSnapshot.getMax == 9, "JAR-16")
    assert(told(1) == change("1", "logs.lines" -> 5, "logs.bytes" -> 50) && told.length == 3)
  }

  test("a driver that can't be told costs a node nothing") {
    val registry = new MetricRegistry
    val own = new MetricSet(registry, Metric.declared)
    val send = (_: MetricChange) => throw new IllegalStateException("gone")
    new ExecutorMetrics("1", Metric.declared, Some(own), send).observed(packed("ranks.running" -> 1))
    assert(running(registry) == 1, "JAR-17")
  }

  test("the driver adds up executors, and forgets the ranks of one that is gone") {
    val registry = new MetricRegistry
    val cluster = new ClusterMetrics(registry, Metric.declared)
    cluster.add(change("1", "ranks.started" -> 2, "ranks.running" -> 2, "join.latency" -> 1))
    cluster.add(change("2", "ranks.started" -> 3, "ranks.running" -> 3))
    assert(running(registry) == 5)
    cluster.onExecutorRemoved(SparkListenerExecutorRemoved(0, "2", "killed"))
    cluster.add(change("2", "ranks.running" -> -1))
    assert(running(registry) == 2)
    assert(registry.getCounters.get("ranks.started").getCount == 5)
  }

  test(
    "of a run that tells again and again only what is new counts, and of the jvm stage nothing that its nodes tell"
  ) {
    val registry = new MetricRegistry
    val counts = new RunCounts(new ClusterMetrics(registry, Metric.declared), Metric.declared, mostRuns = 3)
    def tell(run: String, stage: String, started: Long, running: Long): Unit =
      counts.told(Json.read(
        s"""{"run": "$run", "stage": "$stage",
        "counts": {"ranks.started": $started, "ranks.running": $running, "join.latency": 7, "of.another.version": 1}}"""
      ))
    def now = (registry.getCounters.get("ranks.started").getCount, running(registry))
    Seq(2, 2, 4).foreach(tell("a", "python", _, 2))
    tell("b", "jvm", 8, 8)
    tell("c", "python", 3, 3)
    assert(now == (7, 5), "JAR-19")
    assert(registry.getHistograms.get("join.latency").getCount == 0, "JAR-19")
    tell("a", "python", 4, 0)
    assert(now == (7, 3), "JAR-19")
    tell("d", "python", 1, 0)
    tell("a", "python", 4, 0)
    assert(now == (8, 3), "JAR-19: those that told last are known")
    counts.told(Json.read("[]"))
    def restarts(run: String, resized: Long, lost: Long): Unit = counts.told(Json.read(
      s"""{"run": "$run", "stage": "jvm", "counts": {"ranks.started": 9, "restarts.resized": $resized, "lost.steps": $lost}}"""
    ))
    restarts("e", 1, 14)
    restarts("e", 2, 20)
    restarts("e", 2, 20)
    val counted = Seq("restarts.resized", "lost.steps", "ranks.started").map(registry.getCounters.get(_).getCount)
    assert(counted == Seq(2, 20, 8), "JAR-19")
  }
}
