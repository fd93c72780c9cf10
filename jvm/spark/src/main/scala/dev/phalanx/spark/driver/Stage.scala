package dev.phalanx.spark.driver

import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

/** A thread that hosts or submits the nodes of a run.
  *
  * As STAGE-6, a stage tells the hub when it is over, once for each time that it was started. As STAGE-5, the
  * caller's Spark properties hold for the stage, and nothing that the stage sets is left behind in the caller's
  * properties: the stage's threads are made in the caller's thread, and have copies.
  */
abstract private[spark] class Stage(what: String) {
  private val log = LoggerFactory.getLogger("dev.phalanx")
  @volatile private var cancelled = false
  @volatile private var failure: Throwable = _
  @volatile private var attempt = 0
  @volatile private var thread: Thread = _

  /** Runs all nodes to their end; they begin with `attempt`. */
  protected def run(hub: Hub, attempt: Int): Unit

  /** Before a later attempt: ends what is left of the one before, and waits until another can run. */
  protected def makeRoom(): Unit = ()

  /** How Spark has the tasks of the attempt that begins; none where it has nothing to do with them. */
  protected def look: Option[() => StageLook] = None

  /** Why the stage was to end; null while it may go on. */
  protected def cancellation: String = if (cancelled) "the run is over" else null

  /** Begins; returns at once. A later attempt first ends what is left of the one before. */
  def start(hub: Hub, attempt: Int = 0): Unit = {
    val before = thread
    this.attempt = attempt
    thread = new Thread(() => main(hub, attempt, before), "phalanx-stage")
    thread.setDaemon(true)
    thread.start()
  }

  /** Submits the seat of a partition once more, in the gang of tasks that began with this attempt. */
  final def addSeat(attempt: Int, partition: Int): Unit = if (attempt == this.attempt) addJob(partition)

  /** Ends the jobs of a partition's seat but for that of this stage of Spark's. */
  final def endOtherSeats(attempt: Int, partition: Int, stage: Int): Unit =
    if (attempt == this.attempt) endOtherJobs(partition, stage)

  protected def addJob(partition: Int): Unit = ()
  protected def endOtherJobs(partition: Int, stage: Int): Unit = ()

  /** Ends the stage from outside; how it ends is then no news. */
  def cancel(): Unit = cancelled = true

  /** Waits for the end; false if it has not come. */
  def join(millis: Long): Boolean = {
    thread.join(millis)
    !thread.isAlive
  }

  /** What ended the stage, where it did not end well; null else. */
  def error: Throwable = failure

  private def runAfter(hub: Hub, attempt: Int, before: Thread): Unit = {
    if (before != null) makeRoom()
    val watch = look.map(new StageWatch(_, hub.stageSeen(attempt, _)))
    try {
      if (before != null) {
        before.join(Stage.EndMillis)
        if (before.isAlive) throw new IllegalStateException("the Spark stage of the previous attempt has not ended")
      }
      if (!cancelled) run(hub, attempt)
    } finally watch.foreach(_.close())
  }

  private def main(hub: Hub, attempt: Int, before: Thread): Unit =
    try {
      val problem =
        try {
          runAfter(hub, attempt, before)
          None
        } catch {
          case thrown: Throwable if cancelled || attempt != this.attempt =>
            log.debug("The stage ended", thrown)
            None
          case thrown: Throwable =>
            failure = thrown
            Some(thrown)
        }
      val (cancels, failed) = problem.map(StageFailure.of).partition(_.isCancellation)
      cancels.foreach(why => hub.stop(why.sentence))
      hub.stageEnded(attempt, failed.headOption.map(why => s"$what failed: ${why.sentence}"))
    } catch {
      case NonFatal(thrown) => log.debug("The run is over, and the hub closed", thrown)
    }
}

private[spark] object Stage {

  /** How long a stage may take to end once it was told to. */
  val EndMillis = 30000L
}
