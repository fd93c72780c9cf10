package dev.phalanx.spark.driver

import java.nio.file.Files
import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, LinkedBlockingQueue, TimeUnit}

import scala.collection.mutable
import scala.concurrent.ExecutionContext
import scala.reflect.ClassTag
import scala.util.control.NonFatal
import scala.util.{Failure, Success, Try}

import org.apache.spark.rdd.RDD
import org.apache.spark.{FutureAction, SparkContext, SparkException}
import org.slf4j.LoggerFactory

import dev.phalanx.spark.internal.{SparkInternals, TempFolder}
import dev.phalanx.spark.node.{NodeTask, PythonSeatTask, SeatTask}

/** A gang of tasks: each task of a run, its *seat*, is a Spark job over one partition. Seats that wait have Spark
  * start executors under dynamic allocation.
  *
  * JAR-27 (one-end): when one seat fails, or the caller is interrupted, the others are cancelled. A seat that Spark
  * gives up since it lost its executors is submitted again, three times.
  *
  * JAR-30 (seats-beside): as STAGE-13, a seat that the hub wants once more is another job beside those that it has.
  * It has ended well when one has, and badly when all have; the others are cancelled when one has the seat.
  *
  * JAR-28 (one-gathers): of the gangs of a driver one at a time gathers, from its first job until all its seats run.
  * Without dynamic allocation it is submitted once as many slots are free as it has seats.
  *
  * As STAGE-14, a gang that goes on with fewer tasks than it asks for is submitted as many seats at a time as there
  * are free slots, from its least number on. It has gathered once so many run.
  *
  * As STAGE-11, gangs that wait in the line are cancelled with another one, where Spark cancels their job group or
  * all jobs.
  */
final private[spark] class Seats[A: ClassTag] private (
    rows: RDD[A],
    task: Iterator[A] => String,
    profile: Int,
    least: Int
) {
  import Seats._

  private val sc = rows.sparkContext
  private val tasks = rows.getNumPartitions
  private val gang = s"phalanx-gang-${UUID.randomUUID()}"
  private val turn = Gathering.join(sc.getJobTags(), Option(sc.getLocalProperty(JobGroup)))

  /** The jobs of each partition that are not over. */
  private val jobs = Array.fill(tasks)(mutable.LinkedHashSet.empty[FutureAction[String]])
  private val submissions = Array.fill(tasks)(0)

  /** How many seats have been submitted, from the first on, and when more were looked for. */
  private var submitted = 0
  private var lookedAt = 0L
  private val news = new LinkedBlockingQueue[News]

  private def run(): Unit =
    try {
      while (!mayBegin) Thread.sleep(PollMillis)
      live.add(this)
      submitThoseThatFit()
      awaitEnds()
    } catch {
      case NonFatal(problem) =>
        val failure = StageFailure.of(problem)
        if (failure.isCancellation) Gathering.cancelWith(failure.sentence)
        throw problem
    } finally {
      live.remove(this)
      jobs.foreach(_.foreach(_.cancel()))
      turn.close()
    }

  private def mayBegin: Boolean = {
    if (!mayWait) throw cancelled
    turn.isHeld && hasRoom
  }

  private def mayWait: Boolean = !sc.isStopped && !turn.isGivenUp

  private def hasRoom: Boolean = room >= least

  /** For how many seats there are slots, or may come. */
  private def room: Int =
    if (SparkInternals.startsExecutors(sc)) tasks else SparkInternals.freeSlots(sc, profile)

  /** Submits the next seats; seats that wait for slots go before later jobs. */
  private def submitThoseThatFit(): Unit = {
    val next =
      submitted until (if (least < tasks) math.min(tasks, submitted + math.max(room, least - submitted)) else tasks)
    next.foreach(submit)
    submitted = math.max(submitted, next.end)
    lookedAt = System.nanoTime
  }

  private def looksForRoom: Boolean =
    submitted < tasks && System.nanoTime - lookedAt > TimeUnit.MILLISECONDS.toNanos(LookMillis)

  /** The job has the properties that this thread has now. */
  private def submit(partition: Int): Unit = {
    sc.setLocalProperty(SparkInternals.GANG, gang)
    try {
      var problem = ""
      val took = (_: Int, end: String) => problem = end
      // Spark ends all jobs that share their last RDD with one that fails (`DAGScheduler.stageDependsOn`).
      val own = rows.map(identity)
      val job = sc.submitJob(own, task, Seq(partition), took, problem)
      jobs(partition) += job
      job.onComplete(end => news.add(JobEnded(partition, job, end)))(AtOnce)
    } finally sc.setLocalProperty(SparkInternals.GANG, null)
    // Who gave up before the first job was there has found none to cancel.
    if (!mayWait) throw cancelled
  }

  private def awaitEnds(): Unit = {
    val ended = mutable.Set.empty[Int]
    val taken = mutable.Map.empty[Int, Int]
    while (ended.size < tasks) {
      // A gang that has no job at the moment, and waits for room for more, has none that Spark could cancel.
      if (submitted < tasks && !mayWait) throw cancelled
      if (looksForRoom) submitThoseThatFit()
      val wanted = if (least < tasks) least else jobs.map(_.size).sum
      if (turn.isHeld && SparkInternals.seatsRunning(sc, gang) >= wanted) turn.close()
      taken --= taken.collect { case (partition, stage) if endOthers(partition, stage) => partition }
      val next = if (turn.isHeld || taken.nonEmpty || submitted < tasks) news.poll(PollMillis, TimeUnit.MILLISECONDS)
      else news.take()
      if (next != null) next match {
        case AddSeat(partition)            => if (!ended(partition)) submit(partition)
        case EndOthers(partition, stage)   => taken(partition) = stage
        case JobEnded(partition, job, how) =>
          jobs(partition) -= job
          how match {
            case Success("")                   => ended += partition
            case _ if ended(partition)         => ()
            case _ if jobs(partition).nonEmpty => log.debug("A job is over, beside another: {}", how)
            case Success(problem)              => throw new SparkException(problem)
            case Failure(problem)              => submitAgain(partition, problem)
          }
      }
    }
  }

  private def submitAgain(partition: Int, problem: Throwable): Unit = {
    val failure = StageFailure.of(problem)
    submissions(partition) += 1
    if (!failure.isLostExecutor || submissions(partition) == MaxSubmissions) throw problem
    log.warn("The task of partition {} is submitted again: {}", partition, failure.sentence)
    submit(partition)
  }

  /** Ends the jobs of a partition but for that of this stage; false if Spark doesn't say yet which that is. */
  private def endOthers(partition: Int, stage: Int): Boolean = {
    def isOf(job: FutureAction[String]) =
      job.jobIds.exists(id => sc.statusTracker.getJobInfo(id).exists(_.stageIds().contains(stage)))
    val (its, others) = jobs(partition).partition(isOf)
    if (its.nonEmpty) others.foreach(_.cancel())
    its.nonEmpty || others.size < 2
  }
}

private[spark] object Seats {
  private val PollMillis = 100L

  /** How often slots are looked for that a gang can have besides those that it needs. */
  private val LookMillis = 1000L
  private val JobGroup = "spark.jobGroup.id"

  /** How often a seat is submitted, at most. */
  private val MaxSubmissions = 4

  /** What each seat's stage may carry itself; a larger payload is broadcast once for all. */
  private val MostPayloadBytes = 64 << 10

  private val log = LoggerFactory.getLogger("dev.phalanx")

  /** The gangs of this driver. */
  private val live = ConcurrentHashMap.newKeySet[Seats[_]]()

  /** What happens to seats, for the thread that runs them. */
  sealed private trait News
  private case class AddSeat(partition: Int) extends News
  private case class EndOthers(partition: Int, stage: Int) extends News
  private case class JobEnded(partition: Int, job: FutureAction[String], how: Try[String]) extends News

  /** Runs where a job ends: in Spark's own thread, which may not wait. */
  private val AtOnce = ExecutionContext.fromExecutor((body: Runnable) => body.run())

  /** Runs the seats of a gang, which goes on with `least` of them, to their end, of this profile, with this thread's
    * Spark properties. Blocks. Throws what the first seat that fails throws, in a `SparkException`, as Spark does
    * where a job of it was cancelled; `InterruptedException`.
    */
  def run(sc: SparkContext, tasks: Int, least: Int, task: NodeTask, profile: Int): Unit =
    if (task.payload.length <= MostPayloadBytes) runNodes(sc, tasks, least, task, profile)
    else {
      val folder = new TempFolder("phalanx-payload-").path
      try {
        val file = Files.write(folder.resolve("payload"), task.payload)
        NodeTask.withPayloadFile(sc, task.spec, file.toString)(runNodes(sc, tasks, least, _, profile))
      } finally SparkInternals.delete(folder.toFile)
    }

  private def runNodes(sc: SparkContext, tasks: Int, least: Int, task: NodeTask, profile: Int): Unit =
    new Seats(RunProfile.rows(sc, tasks, profile), new SeatTask(task), profile, least).run()

  /** The same of tasks in Python workers: each is a partition of `rows`, and what it gives is why it failed, as
    * UTF-8.
    */
  def runPython(rows: RDD[Array[Byte]], least: Int, profile: Int): Unit =
    new Seats(rows, PythonSeatTask, profile, least).run()

  /** Submits the seat of a partition once more, in the gang whose jobs have this tag. Returns at once. */
  def add(tag: String, partition: Int): Unit = tell(tag, AddSeat(partition))

  /** Ends the jobs of a partition's seat, in the gang whose jobs have this tag, but for that of a stage of Spark's.
    * Returns at once.
    */
  def endOthers(tag: String, partition: Int, stage: Int): Unit = tell(tag, EndOthers(partition, stage))

  private def tell(tag: String, news: News): Unit =
    live.forEach(gang => if (gang.turn.tags.contains(tag)) gang.news.add(news): Unit)

  /** Ends the jobs of a tag, also those of a gang that waits and has none yet. Returns at once. */
  def cancel(sc: SparkContext, tag: String): Unit = {
    Gathering.giveUp(tag)
    try sc.cancelJobsWithTag(tag)
    catch { case NonFatal(problem) => log.debug("The Spark job can't be cancelled", problem) } // the context has gone
  }

  /** As STAGE-12, has the cluster's manager look again what this application has. */
  def askForExecutorsAgain(sc: SparkContext): Unit =
    if (SparkInternals.startsExecutors(sc)) sc.requestExecutors(0): Unit

  /** Under the name of Spark's own error, as which it is understood. */
  private def cancelled = new SparkException("[SPARK_JOB_CANCELLED] The gang was cancelled while it waited for slots")
}
