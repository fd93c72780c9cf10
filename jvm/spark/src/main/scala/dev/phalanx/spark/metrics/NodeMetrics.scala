package dev.phalanx.spark.metrics

/** What counts the work of this JVM's nodes: nothing, or the plugin.
  *
  * JAR-17 (never-disturbs): counting never fails a node, and never makes it wait for another JVM.
  */
private[spark] trait NodeMetrics {

  /** Numbers of metrics, and by how much each changed, in turn; see [[Metric.declared]]. */
  def observed(changes: Array[Long]): Unit
}

private[spark] object NodeMetrics {
  private val nobody: NodeMetrics = _ => ()

  @volatile private var counter = nobody

  def current: NodeMetrics = counter

  def countedBy(other: NodeMetrics): Unit = counter = other

  def notCounted(): Unit = counter = nobody
}
