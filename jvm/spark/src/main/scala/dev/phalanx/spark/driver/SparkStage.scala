package dev.phalanx.spark.driver

import java.util.UUID

import scala.collection.concurrent.TrieMap

import org.apache.spark.SparkContext

import dev.phalanx.spark.BarrierRunner
import dev.phalanx.spark.internal.SparkInternals
import dev.phalanx.spark.node.NodeTask

/** `localMode = false`: a barrier stage or a gang of tasks, with the caller's Spark properties and a tag of its own
  * to cancel it by.
  */
final private[spark] class SparkStage(
    sc: SparkContext,
    payload: Array[Byte],
    ranks: RankOptions,
    tasks: Int,
    least: Int,
    gang: String,
    profile: Int,
    description: String,
    slotsTimeoutMillis: Long
) extends Stage("the Spark stage") {
  @volatile private var tag = newTag()

  /** How many jobs the hub has wanted beside those of each seat. */
  private val beside = TrieMap.empty[Int, Int]

  override protected def run(hub: Hub, attempt: Int): Unit = {
    sc.addJobTag(tag)
    val task = new NodeTask(hub.nodeSpec(attempt, ranks), payload)
    BarrierRunner.run(sc, tasks, description, task, gang, least, profile)
  }

  override protected def makeRoom(): Unit = {
    cancelJobs()
    tag = newTag()
    // Of a barrier stage Spark itself would look only every 15 s whether the lost executor has been replaced.
    if (gang == "barrier")
      Preflight.awaitSlotsAgain(
        tasks,
        slotsTimeoutMillis,
        () => SparkInternals.taskSlots(sc, profile),
        () => cancellation != null
      )
    else Seats.askForExecutorsAgain(sc)
  }

  override protected def addJob(partition: Int): Unit = {
    beside(partition) = beside.getOrElse(partition, 0) + 1
    Seats.add(tag, partition)
  }

  override protected def endOtherJobs(partition: Int, stage: Int): Unit =
    beside.remove(partition).foreach(_ => Seats.endOthers(tag, partition, stage))

  override protected def look: Option[() => StageLook] = {
    val ofAttempt = tag
    beside.clear()
    def seats = if (gang == "tasks") least + beside.values.sum else 0
    Some(() => StageLook.of(sc, ofAttempt, seats, profile))
  }

  override def cancel(): Unit = {
    super.cancel()
    cancelJobs()
  }

  private def cancelJobs(): Unit = Seats.cancel(sc, tag)

  private def newTag() = s"phalanx-${UUID.randomUUID()}"
}
