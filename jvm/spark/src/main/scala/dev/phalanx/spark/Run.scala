package dev.phalanx.spark

import java.time.Duration
import java.util.concurrent.{CountDownLatch, TimeUnit, TimeoutException}

import scala.jdk.CollectionConverters._
import scala.util.{Failure, Success, Try}

import org.slf4j.LoggerFactory

import dev.phalanx.spark.driver.{Hub, Job, OutputPrinter, RunLabel, Stage}
import dev.phalanx.spark.internal.{JvmEnd, SparkInternals}
import dev.phalanx.spark.ui.RunPosts

/** One training run. `TorchDistributor.start` makes it.
  *
  * {{{
  * val run = new TorchDistributor(4, localMode = false, useGpu = false).start("train.py")
  * println(run.status)              // waiting for 3 of 4 tasks, starting ranks, training, step 120, ..., over
  * println(run.stacks())            // what every thread of every rank is doing; the ranks go on
  * run.result().resultJson          // waits for the end; TrainingException where it failed
  * }}}
  *
  * Any thread may call it. As RUN-5, output, phases and the outcome are handled in one thread: the caller's for
  * `TorchDistributor.run`. As RUN-6, when the run is over, so is its Spark job, and the hub is closed. As RUN-7,
  * showing output never fails a run.
  *
  * JAR-7 (interrupt-ends-ranks): an interrupt of the driving thread, and the JVM's end (Ctrl-C), end every rank
  * first. As JAR-11 says, the JVM's end waits for them no longer than Spark has time to stop.
  */
final class Run private[spark] (
    val name: String,
    job: Job,
    bind: String,
    advertise: String,
    stage: Stage,
    lease: AutoCloseable
) {
  private val EventMillis = 50L // how soon an interrupt is noticed
  private val StageEndMillis = 30000L // how long the stage may take to end once all its ranks have
  private val ElasticEndMillis = 500L // the same where the run may have had fewer tasks than it asked for
  private val SnapshotNanos = 1000000000L // how often Spark's UI is told
  private val ShutdownMillis = 3000L // how long the JVM's end waits beyond the grace
  private val StacksMillis = 10000L // how long the ranks' stacks may take: the hub waits 5 s for its nodes

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val began = System.nanoTime
  private val label = new RunLabel(name)
  private val show = new OutputPrinter(label, log)
  private val graceMillis = job.graceMillis
  private val over = new CountDownLatch(1)
  private var interrupted = false

  // Written by the driving thread only.
  @volatile private var words = "preparing"
  @volatile private var points = Vector.empty[Phase]
  @volatile private var newest = Map.empty[Int, Report]
  @volatile private var ended = Seq.empty[RankOutcome]
  @volatile private var outcome: Try[TrainingResult] = _

  private var snapshotDue = began

  // Under this object's lock.
  private var openHub: Option[Hub] = None
  private var cancelled: Option[String] = None
  private var logsOf = (_: Int) => ""

  /** Where the run is, in words: `waiting for 4 slots; 2 are free`, `waiting for 3 of 8 tasks`, `starting ranks`,
    * `training, step 120`, `over`.
    */
  def status: String = words

  /** When the run got where, in order of arrival, so far. */
  def phases: Seq[Phase] = points

  /** The newest `phalanx.report` of each rank that made one. */
  def reports: Map[Int, Report] = newest

  /** How each rank ended, once the run is over. */
  def ranks: Seq[RankOutcome] = ended

  /** Whether the run is over, well or not. */
  def done: Boolean = over.getCount == 0

  /** Waits for the end, and returns what the training left.
    *
    * Throws [[TrainingException]] where the run failed, `InterruptedException` where the waiting is interrupted; the
    * run then goes on.
    */
  def result(): TrainingResult = {
    over.await()
    outcome.get
  }

  /** As `result()`. If the run is not over in time, it throws `java.util.concurrent.TimeoutException`, and the run
    * goes on.
    */
  def result(timeout: Duration): TrainingResult =
    if (over.await(timeout.toMillis, TimeUnit.MILLISECONDS)) outcome.get
    else throw new TimeoutException(s"$name did not end within ${timeout.toMillis / 1e3} s and is still running")

  /** What every rank left, by rank; waits and throws as `result`. Of a failed run, `TrainingException` has them. */
  def results(): Seq[RankResult] = result().results

  /** As `results()`, with a time-out. */
  def results(timeout: Duration): Seq[RankResult] = result(timeout).results

  /** Ends every rank; `result` then throws [[TrainingException]] of kind `cancelled`. Returns at once; a run that is
    * over stays as it is.
    */
  def cancel(): Unit = cancel("cancelled by the caller")

  /** As `cancel()`, and says why. */
  def cancel(reason: String): Unit = synchronized {
    cancelled = Some(reason)
    openHub.foreach(_.stop(reason))
  }

  /** The Python stacks of all threads of every rank that runs; the ranks go on. Takes a second or so.
    *
    * Throws `IllegalStateException` where the run is over or hasn't begun, `java.util.concurrent.TimeoutException`
    * where no answer came.
    */
  def stacks(): Stacks = {
    val hub = synchronized(openHub).getOrElse(throw new IllegalStateException(s"$name is not running"))
    hub
      .stacks(StacksMillis)
      .getOrElse(
        throw new TimeoutException(s"the stacks of $name did not come within ${StacksMillis / 1000} s")
      )
  }

  /** What the driver has seen of a rank's output: whole lines, the newest 256 KiB of them. All ranks together have 96
    * MiB, so of more than 384 ranks each has less.
    */
  def logs(rank: Int): String = if (rank < 0) "" else synchronized(logsOf)(rank)

  def getName: String = name
  def getStatus: String = status
  def getPhases: java.util.List[Phase] = phases.asJava
  def getReports: java.util.Map[Integer, Report] = reports.map { case (rank, told) => Int.box(rank) -> told }.asJava
  def getRanks: java.util.List[RankOutcome] = ranks.asJava
  def getResults(): java.util.List[RankResult] = results().asJava
  def isDone: Boolean = done

  /** Drives the run in a thread of its own; returns at once. */
  private[spark] def start(): Run = {
    val thread = new Thread(() => { Try(drive()); () }, "phalanx-run") // the outcome is kept for `result`
    thread.setDaemon(true)
    thread.start()
    this
  }

  /** Runs the job to its end in this thread; throws [[TrainingException]] where it fails or is interrupted. */
  private[spark] def drive(): TrainingResult =
    try {
      label.begin()
      val result = withHub()
      outcome = Success(result)
      result
    } catch {
      case problem: Throwable =>
        outcome = Failure(problem)
        throw problem
    } finally {
      words = "over"
      label.end()
      lease.close()
      over.countDown()
      if (interrupted) Thread.currentThread.interrupt()
    }

  private def withHub(): TrainingResult = {
    val hub = Hub.open(job, bind, advertise, SparkInternals.localDir.getAbsolutePath)
    val ending = endingOf(hub)
    var problem = Option.empty[Throwable]
    try {
      JvmEnd.add(ending)
      synchronized {
        openHub = Some(hub)
        logsOf = hub.logs
        cancelled.foreach(hub.stop)
      }
      drive(hub)
    } catch {
      case thrown: Throwable =>
        problem = Some(thrown)
        throw thrown
    } finally {
      Try(RunPosts.tellLast(hub.snapshot, problem)): Unit
      synchronized { openHub = None }
      hub.close()
      JvmEnd.remove(ending)
    }
  }

  private def drive(hub: Hub): TrainingResult = {
    val opened = elapsed
    reached("hub open", None, opened)
    stage.start(hub)
    val end =
      try endOf(hub, opened)
      catch {
        case problem: Throwable =>
          stage.cancel()
          throw problem
      }
    ended = end.ranks
    val results = RankResult.keep(ended, hub.resultPath)
    // Tasks of an elastic run that got no slot are waited for by nobody.
    if (!end.isInstanceOf[Hub.Finished] || (job.isElastic && !stage.join(ElasticEndMillis))) stage.cancel()
    waitForStage()
    end match {
      case Hub.Finished(_) =>
        reached("returned", None, elapsed)
        new TrainingResult(ended, results, points)
      case Hub.Failed(failure, text) => throw TrainingException.ofFailure(failure, text, stage.error, results)
    }
  }

  private def endOf(hub: Hub, opened: Double): Hub.Outcome = {
    var end: Hub.Outcome = null
    while (end == null) {
      heedInterrupt(hub)
      tell(hub)
      hub.next(EventMillis).foreach {
        case Hub.Output(text)                       => show(text)
        case Hub.PhaseReached(point, rank, seconds) => reached(point, rank, opened + seconds)
        case Hub.Status(text)                       => words = text
        case Hub.Reported(rank, report)             => newest += rank -> report
        case Hub.Restarted                          => ()
        case Hub.Resubmit(attempt)                  => stage.start(hub, attempt)
        case Hub.SeatWanted(attempt, partition)     => stage.addSeat(attempt, partition)
        case Hub.SeatTaken(attempt, partition, of)  => stage.endOtherSeats(attempt, partition, of)
        case last: Hub.Outcome                      => end = last
      }
    }
    end
  }

  /** Tells Spark's UI how the run stands, once a second. */
  private def tell(hub: Hub): Unit =
    if (System.nanoTime - snapshotDue >= 0) {
      Try {
        val snapshot = hub.snapshot
        if (RunPosts.tell(snapshot) == "stacks") answerStacks(RunPosts.runOf(snapshot))
      }: Unit
      snapshotDue = System.nanoTime + SnapshotNanos
    }

  /** Tells Spark's UI what the ranks' threads do; it ends with the hub at the latest. */
  private def answerStacks(run: String): Unit = {
    val answering = new Thread(
      () => RunPosts.answer(run, Try(stacks()).fold(_.getMessage, _.toString)),
      "phalanx-ui-stacks"
    )
    answering.setDaemon(true)
    answering.start()
  }

  private def heedInterrupt(hub: Hub): Unit =
    if (Thread.interrupted()) {
      if (interrupted)
        throw new TrainingException("cancelled", s"$name was interrupted twice, and left to end by itself")
      interrupted = true
      hub.stop("interrupted by the caller")
    }

  private def waitForStage(): Unit =
    try
      if (!stage.join(StageEndMillis)) {
        log.warn(s"The Spark stage of $name has not ended; cancelling it.")
        stage.cancel()
      }
    catch {
      case _: InterruptedException =>
        interrupted = true
        stage.cancel()
    }

  /** The JVM's end is the run's, in so far as there is time for it: its guards and nodes do the rest. */
  private def endingOf(hub: Hub): JvmEnd.Ending = new JvmEnd.Ending {
    private val asked = "the driver was asked to end (Ctrl-C, or a signal)"

    override def begin(): Unit = hub.stop(asked)

    override def await(millis: Long): Unit =
      try over.await(millis.min(graceMillis + ShutdownMillis), TimeUnit.MILLISECONDS): Unit
      finally {
        val ranks = if (done) "its ranks are gone"
        else s"its ranks have up to ${graceMillis / 1e3} s to end, then they are killed"
        // The caller's thread may not get to say it any more, and neither may the loggers.
        System.err.println(s"$name was cancelled: $asked; $ranks")
      }
  }

  private def reached(point: String, rank: Option[Int], seconds: Double): Unit =
    points :+= Phase(point, rank, seconds)

  private def elapsed: Double = (System.nanoTime - began) / 1e9
}
