package dev.phalanx.spark.metrics

import java.util.{LinkedHashMap => JLinkedHashMap, Map => JMap}

import com.fasterxml.jackson.databind.JsonNode

/** Counts what drivers tell, again and again, of all that their runs have counted: the restarts of each, and the
  * ranks of the python stage, of which the executors' plugin knows nothing.
  *
  * JAR-19 (counted-once): of each telling only what is new counts, and of the jvm stage nothing that its nodes count
  * themselves. Latencies are not told.
  *
  * @param mostRuns of so many runs, those that told last, it knows what has been counted
  */
final private[spark] class RunCounts(metrics: ClusterMetrics, declared: Seq[Metric], mostRuns: Int) {
  private val counted = new JLinkedHashMap[String, Map[Metric, Long]](16, 0.75f, true) {
    override protected def removeEldestEntry(eldest: JMap.Entry[String, Map[Metric, Long]]): Boolean = size > mostRuns
  }

  /** Counts what is new in a snapshot of a run (`rust/types/src/run_snapshot.rs`). */
  def told(snapshot: JsonNode): Unit = synchronized {
    val run = snapshot.path("run").asText("")
    if (run.nonEmpty) {
      val before = Option(counted.get(run)).getOrElse(Map.empty)
      val isPython = snapshot.path("stage").asText("") == "python"
      val told = declared.filter(metric => isPython || metric.source == "run")
      val now = told.flatMap(metric => count(snapshot, metric).map(metric -> _)).toMap
      counted.put(run, now)
      val changes = now.toSeq.map { case (metric, count) => metric -> (count - before.getOrElse(metric, 0L)) }
      metrics.add(MetricChange(s"run $run", changes.filter(_._2 != 0)))
    }
  }

  private def count(snapshot: JsonNode, metric: Metric): Option[Long] =
    Option(
      snapshot.path("counts").get(metric.name)
    ).filter(_.isIntegralNumber && metric.kind != "histogram").map(_.asLong)
}

private[spark] object RunCounts {
  @volatile private var ofDriver: Option[RunCounts] = None

  /** From now on this driver's metrics have what its runs tell. */
  def countedBy(counts: RunCounts): Unit = ofDriver = Some(counts)

  def notCounted(): Unit = ofDriver = None

  /** What the plugin of this JVM counts, if there is one. */
  def told(snapshot: JsonNode): Unit = ofDriver.foreach(_.told(snapshot))
}
