package dev.phalanx.spark.node

import java.nio.file.Path

import org.apache.spark.TaskContext

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.{Json, SparkInternals}
import dev.phalanx.spark.jni.{Core, CoreLog, Native, NodeCallbacks}
import dev.phalanx.spark.metrics.NodeMetrics
import dev.phalanx.spark.ways.TunnelEntrance

/** One node of a job, run in this JVM: by a barrier task, or by a thread of the driver in local mode.
  *
  * @param spec what the hub tells every node
  * @param payload what the ranks execute, unless it is in `payloadFile`
  * @param gpus the addresses of the GPUs that Spark gave the task; `None` where it gave none
  */
final private[spark] case class Node(
    spec: Array[Byte],
    payload: Array[Byte],
    partition: Int,
    host: String,
    gpus: Option[Seq[String]],
    payloadFile: Option[Path] = None
) {

  /** Runs the node to its end: its ranks are gone when this returns or throws.
    *
    * @param interrupted why it has to end; null while it may go on
    */
  def run(interrupted: () => String): Unit = LiveNodes.run { live =>
    val home = unpacked
    Core { native =>
      val tunnel = TunnelEntrance.to(native.hubOf(spec)(0))
      try native.runNode(
          spec,
          payload,
          payloadFile.fold[String](null)(_.toString),
          here(tunnel.map(_.address)),
          home.folder.toString,
          RankEnvironment.here(),
          new Node.Callbacks(native, NodeMetrics.current, live, interrupted)
        )
      finally tunnel.foreach(_.close())
    }
  }

  /** What only the task knows. */
  private def here(tunnel: Option[String]): String = {
    val always = Seq("partition" -> partition, "host" -> host, "work_dir" -> SparkInternals.localDir.getAbsolutePath)
    val task = Option(TaskContext.get()).toSeq.flatMap { context =>
      Seq(
        "stage" -> context.stageId(),
        "task" -> context.taskAttemptId(),
        "attempt_number" -> context.attemptNumber()
      )
    }
    Json.write(always ++ task ++ gpus.map("gpus" -> _) ++ tunnel.map("tunnel" -> _): _*)
  }

  /** A failure names the host, whose disks may be mounted like no other's. */
  private def unpacked: UnpackedJar =
    try UnpackedJar.get()
    catch {
      case problem: TrainingException =>
        throw new TrainingException(problem.kind, s"Phalanx can't start on $host: ${problem.message}")
    }
}

private[spark] object Node {

  /** Serves the blocks of this host, where the run has no node, until the attempt or the run is over.
    *
    * @param spec what the hub tells every node
    * @param number this carrier's own in the run
    * @param wanted the names of the hosts that need a carrier
    * @param interrupted why it has to end; null while it may go on
    * @return whether this host was among those
    */
  def carry(spec: Array[Byte], number: Int, wanted: Seq[String], interrupted: () => String): Boolean =
    LiveNodes.run { live =>
      Core { native =>
        val tunnel = TunnelEntrance.to(native.hubOf(spec)(0))
        val callbacks = new Callbacks(native, NodeMetrics.current, live, interrupted)
        try native.runCarrier(spec, number, wanted.toArray, tunnel.map(_.address).orNull, callbacks)
        finally tunnel.foreach(_.close())
      }
    }

  final private class Callbacks(
      native: Native,
      metrics: NodeMetrics,
      live: LiveNode,
      why: () => String
  ) extends NodeCallbacks {

    override def interrupted(): String = {
      CoreLog.handOver(native)
      val reason = why()
      if (reason != null) reason else live.endingBecause
    }

    override def observed(changes: Array[Long]): Unit = metrics.observed(changes)
    override def stdoutIsExecutors(): java.lang.Boolean = !SparkInternals.inDriver
    override def copyFiles(folderAndFiles: Array[String]): String =
      HadoopFolder.copy(folderAndFiles.head, folderAndFiles.toSeq.tail).orNull
  }
}
