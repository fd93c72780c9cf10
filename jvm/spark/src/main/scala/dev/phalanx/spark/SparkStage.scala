package dev.phalanx.spark

import java.util.UUID

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.slf4j.LoggerFactory

/** `localMode = false`: a barrier stage, with the caller's Spark properties and a tag of its own to cancel it by. */
final private[spark] class SparkStage(
    sc: SparkContext,
    job: Array[Byte],
    payload: Array[Byte],
    tasks: Int,
    description: String,
    localGpus: Seq[String],
    program: RankProgram,
    pyFiles: Seq[String]
) extends Stage("the Spark stage") {
  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val tag = s"phalanx-${UUID.randomUUID()}"

  override protected def run(hub: Hub): Unit = {
    sc.addJobTag(tag)
    val task = new NodeTask(job, payload, hub.address, hub.token, localGpus, program, Map.empty, pyFiles)
    BarrierRunner.run(sc, tasks, description, task).foreach(hub.nodeReport)
  }

  override def cancel(): Unit = {
    super.cancel()
    try sc.cancelJobsWithTag(tag)
    catch { case NonFatal(problem) => log.debug("The Spark job can't be cancelled", problem) } // the context has gone
  }
}
