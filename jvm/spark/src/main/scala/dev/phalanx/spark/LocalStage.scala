package dev.phalanx.spark

import java.net.InetAddress

import scala.util.Try

/** `localMode = true`: all ranks on the driver's host, the node in a thread of this JVM. */
final private[spark] class LocalStage(
    job: Array[Byte],
    payload: Array[Byte],
    gpus: Seq[String],
    program: RankProgram,
    pyFiles: Seq[String]
) extends Stage("the driver's own node") {

  override protected def run(hub: Hub, attempt: Int): Unit = {
    val host = Try(InetAddress.getLocalHost.getHostName).getOrElse("localhost")
    val node = Node(job, payload, hub.address, hub.token, 0, attempt, host, gpus, program, Map.empty, pyFiles)
    val report = node.run(() => cancellation, _ => throw new IllegalStateException("a local node is alone"))
    if (report.nonEmpty) hub.nodeReport(report)
  }
}
