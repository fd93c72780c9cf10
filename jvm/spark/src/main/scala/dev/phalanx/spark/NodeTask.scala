package dev.phalanx.spark

import org.apache.spark.BarrierTaskContext
import org.apache.spark.broadcast.Broadcast

/** What each task of the barrier stage does: it is a node of the job.
  *
  * TASK-1: a task that Spark kills ends its ranks, and then as Spark expects, by `TaskKilledException`.
  *
  * @param attempt the attempt that the nodes of this stage begin with
  * @param payloadFile the payload, where it is too large to travel in here
  */
final private[spark] class NodeTask(
    job: Array[Byte],
    payload: Array[Byte],
    hub: String,
    token: Array[Byte],
    attempt: Int,
    localGpus: Seq[String],
    program: RankProgram,
    env: Map[String, String],
    pyFiles: Seq[String],
    payloadFile: Option[Broadcast[PayloadFile]] = None
) extends (Iterator[Int] => Iterator[Array[Byte]])
    with Serializable {

  override def apply(partition: Iterator[Int]): Iterator[Array[Byte]] = {
    val context = BarrierTaskContext.get()
    val number = context.partitionId()
    val host = NodeTask.hostOf(context.getTaskInfos()(number).address)
    val what = payloadFile.fold(payload)(_.value.bytes)
    val node = Node(job, what, hub, token, number, attempt, host, gpus(context), program, env, pyFiles)
    val report =
      try node.run(() => interruption(context), context.allGather)
      catch {
        case problem: Throwable =>
          SparkInternals.throwIfKilled(context)
          throw problem
      }
    SparkInternals.throwIfKilled(context)
    if (report.isEmpty) Iterator.empty else Iterator.single(report)
  }

  private def interruption(context: BarrierTaskContext): String = {
    val reason = SparkInternals.killReason(context)
    if (reason != null) s"its Spark task was killed: $reason"
    else if (Thread.currentThread.isInterrupted) "its Spark task was interrupted"
    else null
  }

  private def gpus(context: BarrierTaskContext): Seq[String] = {
    val description = Json.read(job)
    if (!description.path("use_gpu").asBoolean()) Vector.empty
    else if (localGpus.nonEmpty) {
      // A local master gives tasks no addresses: they share out the driver's.
      val perTask = description.path("ranks").asInt() / description.path("tasks").asInt(1)
      localGpus.slice(context.partitionId() * perTask, (context.partitionId() + 1) * perTask)
    } else {
      val found = context.resources().get("gpu")
      if (found.isEmpty)
        Checks.refuse(s"Spark gave the task on ${context.getTaskInfos()(context.partitionId()).address} no GPU")
      Gpus.devices(found.get.addresses.toSeq, sys.env.get(Gpus.Visible))
    }
  }
}

private[spark] object NodeTask {

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
