package dev.phalanx.spark

/** Who counts what the nodes of this JVM do: nobody, or the plugin.
  *
  * METRIC-1: counting never fails a node, and never makes it wait for another JVM.
  */
private[spark] trait NodeMetrics {
  def joined(micros: Long): Unit
  def rankStarted(micros: Long): Unit
  def rankRestarted(): Unit
  def rankEnded(failed: Boolean): Unit
  def output(lines: Long, bytes: Long): Unit

  /** A node is over: there is nothing more to come of it. */
  def nodeEnded(): Unit
}

private[spark] object NodeMetrics {

  private object Nobody extends NodeMetrics {
    override def joined(micros: Long): Unit = ()
    override def rankStarted(micros: Long): Unit = ()
    override def rankRestarted(): Unit = ()
    override def rankEnded(failed: Boolean): Unit = ()
    override def output(lines: Long, bytes: Long): Unit = ()
    override def nodeEnded(): Unit = ()
  }

  @volatile private var counter: NodeMetrics = Nobody

  def current: NodeMetrics = counter

  def countedBy(other: NodeMetrics): Unit = counter = other

  def notCounted(): Unit = counter = Nobody
}
