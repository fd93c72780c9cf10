package dev.phalanx.spark.jni

/** What a node, or a carrier, needs of the JVM that it runs in. Only the thread that is in `runNode` or `runCarrier`
  * calls it.
  */
private[spark] trait NodeCallbacks {

  /** Why the node has to end; null while it may go on. Asked every 50 ms. */
  def interrupted(): String

  /** These metrics changed: the number of each among `Native.metrics`, and by how much, in turn. */
  def observed(changes: Array[Long]): Unit

  /** Whether this JVM's stdout is an executor's, and not a driver's. */
  def stdoutIsExecutors(): java.lang.Boolean

  /** Copies files to a folder of a Hadoop file system: its URI, then the files. Why it can't; null if it could. */
  def copyFiles(folderAndFiles: Array[String]): String
}
