package dev.phalanx.spark.node

import java.lang.ref.Reference

import org.apache.spark.broadcast.Broadcast
import org.apache.spark.{SerializableWritable, SparkContext, TaskContext}

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.SparkInternals

/** What each task of a run does, in a barrier stage or as a seat: it is a node of the job.
  *
  * JAR-21 (killed-task): a task that Spark kills ends its ranks, and then ends as Spark expects, by
  * `TaskKilledException`.
  *
  * @param spec what the hub tells every node
  * @param payloadFile the payload, where it is too large to travel in here
  */
final private[spark] class NodeTask(
    val spec: Array[Byte],
    val payload: Array[Byte],
    payloadFile: Option[Broadcast[SerializableWritable[PayloadFile]]] = None
) extends (Iterator[Int] => Unit)
    with Serializable {

  override def apply(partition: Iterator[Int]): Unit = {
    val context = TaskContext.get()
    val host = NodeTask.hostOf(SparkInternals.executorHost)
    val file = payloadFile.map(_.value.value)
    try {
      val gpus = context.resources().get("gpu").map(_.addresses.toSeq)
      Node(spec, payload, context.partitionId(), host, gpus, file.map(_.file))
        .run(() => NodeTask.interruption(context))
    } catch {
      case problem: Throwable =>
        SparkInternals.throwIfKilled(context)
        throw NodeTask.failure(problem)
    } finally Reference.reachabilityFence(file) // the file goes with it
    SparkInternals.throwIfKilled(context)
  }

}

private[spark] object NodeTask {

  /** Calls `run` with a task whose payload is a file at the driver, which has to stay until this returns. */
  def withPayloadFile(sc: SparkContext, spec: Array[Byte], file: String)(run: NodeTask => Unit): Unit = {
    val payload = sc.broadcast(new SerializableWritable(new PayloadFile(file)))
    try run(new NodeTask(spec, Array.empty, Some(payload)))
    finally payload.destroy()
  }

  /** Why what runs in a task has to end; null while it may go on. */
  def interruption(context: TaskContext): String = {
    val reason = SparkInternals.killReason(context)
    if (reason != null) s"its Spark task was killed: $reason"
    else if (Thread.currentThread.isInterrupted) "its Spark task was interrupted"
    else null
  }

  /** What the core refuses in a task is a failure of the run, whoever made the mistake. */
  private def failure(problem: Throwable): Throwable = problem match {
    case _: IllegalArgumentException | _: IllegalStateException =>
      new TrainingException("start", problem.getMessage, problem)
    case other => other
  }

  /** The host of Spark's `host:port`, which may be an IPv6 address in brackets or without any. */
  def hostOf(address: String): String = {
    val colon = address.lastIndexOf(':')
    val port = address.substring(colon + 1)
    val host = if (colon < 0) address else address.substring(0, colon)
    val hasPort =
      colon >= 0 && port.nonEmpty && port.forall(_.isDigit) && !(host.contains(':') && !host.startsWith("["))
    (if (hasPort) host else address).stripPrefix("[").stripSuffix("]")
  }
}
