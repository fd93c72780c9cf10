package dev.phalanx.spark.driver

import java.net.InetAddress

import scala.util.Try

import dev.phalanx.spark.node.Node

/** `localMode = true`: all ranks on the driver's host, the node in a thread of this JVM. */
final private[spark] class LocalStage(
    payload: Array[Byte],
    ranks: RankOptions
) extends Stage("the driver's own node") {

  override protected def run(hub: Hub, attempt: Int): Unit = {
    val host = Try(InetAddress.getLocalHost.getHostName).getOrElse("localhost")
    val node = Node(hub.nodeSpec(attempt, ranks), payload, 0, host, gpus = None)
    node.run(() => cancellation)
  }
}
