package dev.phalanx.spark

/** What a node needs of the JVM it runs in; called by the thread that is in `runNode`, and by no other. */
private[spark] trait NodeHost {

  /** Why the node has to end; null while it may go on. Asked every 50 ms. */
  def interrupted(): String

  /** Spark's barrier with a text from each task. What it throws, `runNode` throws again. */
  def allGather(text: String): Array[String]

  /** All tasks have joined, so many microseconds after the node began. */
  def joined(micros: Long): Unit

  /** A rank's process is there, so many microseconds after the node began. */
  def rankStarted(micros: Long): Unit

  /** The rank that starts next is one that was started before. */
  def rankRestarted(): Unit

  def rankEnded(failed: Boolean): Unit

  /** The ranks' output since the last call. */
  def output(lines: Long, bytes: Long): Unit
}
