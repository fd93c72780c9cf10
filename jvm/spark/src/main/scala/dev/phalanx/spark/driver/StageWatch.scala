package dev.phalanx.spark.driver

import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.slf4j.LoggerFactory

import dev.phalanx.spark.internal.SparkInternals

/** What a look at Spark shows of a stage.
  *
  * @param running how many of its tasks run; none if it isn't submitted yet
  * @param slots how many task slots there are
  * @param free how many of these are free
  * @param leaving which of its tasks run on executors that Spark decommissions, by their attempt ids
  */
final private[spark] case class StageLook(running: Option[Int], slots: Int, free: Int, leaving: Seq[Long])

private[spark] object StageLook {

  /** How Spark's scheduler has the barrier stage of this tag, or its gang of tasks of so many `seats`. Of these none
    * counts as running until all do. A gang that waits for free slots, though it has none submitted yet, waits. Slots
    * are those of this profile.
    */
  def of(sc: SparkContext, tag: String, seats: Int, profile: Int): StageLook = {
    val seen = SparkInternals.stageLook(sc, tag, seats, profile)
    val running = Some(seen(0)).filter(_ >= 0).orElse(Some(0).filter(_ => Gathering.isGathering(tag)))
    StageLook(running, seen(1), seen(2), SparkInternals.leavingTasks(sc, tag).toSeq)
  }
}

/** Looks at a stage, and tells what it sees: the hub gives tasks their time to join once they run, and learns which
  * run on executors that Spark decommissions.
  *
  * As STAGE-7, a look comes once a second until one shows that tasks run, and then every two, by one thread, which
  * ends with the stage. Looking never fails a run: where it fails, it ends, or, once tasks run, begins anew later.
  */
final private[driver] class StageWatch(look: () => StageLook, tell: StageLook => Unit) extends AutoCloseable {
  import StageWatch._

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val over = new CountDownLatch(1)
  private val thread = new Thread(() => watch(), "phalanx-stage-watch")
  thread.setDaemon(true)
  thread.start()

  private def watch(): Unit = {
    var pause = FirstMillis
    var runs = false
    while (!over.await(pause, TimeUnit.MILLISECONDS))
      try {
        val seen = look()
        tell(seen)
        val now = seen.running.exists(_ > 0)
        runs ||= now
        pause = if (now) RunningMillis else IntervalMillis
      } catch { // the context or the hub is going, or this Spark doesn't tell
        case problem @ (NonFatal(_) | _: LinkageError) =>
          log.debug("Spark doesn't say how the stage stands", problem)
          if (runs) pause = AgainMillis else over.countDown()
      }
  }

  /** The stage is over. */
  override def close(): Unit = {
    over.countDown()
    thread.join(EndMillis)
  }
}

private object StageWatch {

  /** Most stages have their tasks by then. */
  private val FirstMillis = 500L
  private val IntervalMillis = 1000L
  private val RunningMillis = 2000L

  /** When Spark is looked at again that did not tell while tasks ran. */
  private val AgainMillis = 30000L

  /** How long a last look may take. */
  private val EndMillis = 3000L
}
