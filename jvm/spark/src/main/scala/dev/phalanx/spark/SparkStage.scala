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
    pyFiles: Seq[String],
    slotsTimeoutMillis: Long
) extends Stage("the Spark stage") {
  private val SlotsPollMillis = 100L
  private val log = LoggerFactory.getLogger("dev.phalanx")
  @volatile private var tag = newTag()

  override protected def run(hub: Hub, attempt: Int): Unit = {
    sc.addJobTag(tag)
    val task =
      new NodeTask(job, payload, hub.address, hub.token, attempt, localGpus, program, Map.empty, pyFiles)
    BarrierRunner.run(sc, tasks, description, task).foreach(hub.nodeReport)
  }

  override protected def makeRoom(): Unit = {
    cancelJobs()
    tag = newTag()
    // Spark itself would look only every 15 s whether the lost executor has been replaced.
    val deadline = System.nanoTime + slotsTimeoutMillis * 1000000
    while (cancellation == null && SparkInternals.taskSlots(sc) < tasks && System.nanoTime < deadline)
      Thread.sleep(SlotsPollMillis)
  }

  override def cancel(): Unit = {
    super.cancel()
    cancelJobs()
  }

  private def cancelJobs(): Unit =
    try sc.cancelJobsWithTag(tag)
    catch { case NonFatal(problem) => log.debug("The Spark job can't be cancelled", problem) } // the context has gone

  private def newTag() = s"phalanx-${UUID.randomUUID()}"
}
