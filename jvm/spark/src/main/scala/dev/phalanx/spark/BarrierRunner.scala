package dev.phalanx.spark

import java.net.InetSocketAddress

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.api.java.JavaRDD

import dev.phalanx.spark.driver.{OwnJar, RunProfile, Seats, StageFailure, StageLook}
import dev.phalanx.spark.internal.{SparkFit, Version}
import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.node.NodeTask
import dev.phalanx.spark.ui.RunStore
import dev.phalanx.spark.ways.TunnelExits

/** The jvm stage: tasks over an RDD, without SQL, one for each node of a job. They are one barrier stage, or a gang
  * of tasks (`driver.Seats`).
  *
  * As STAGE-5, the caller's Spark properties (job group, tags, pool) hold for the stage. Nothing that the stage sets
  * is left behind in the caller's properties.
  */
object BarrierRunner {
  private val Description = "spark.job.description"

  /** The version of this jar. */
  def version(): String = Version.phalanx

  /** Why this jar can't run on the Spark that it is in, in a sentence without its full stop; null if it can. */
  def problem(): String = SparkFit.problem()

  /** Runs the nodes of a job whose hub is elsewhere: in the Python driver, which calls this by py4j.
    *
    * Blocks until the Spark job is over. Throws [[TrainingException]] with the reason in a sentence where the stage
    * failed, and Spark's own exception where its job was cancelled.
    *
    * {{{
    * BarrierRunner.runPython(jsc.sc(), 4, hub.node_spec(...), payload, "Phalanx: train, 8 ranks", "tasks", 4, 0)
    * }}}
    *
    * @param tasks how many tasks the job has
    * @param spec what the hub tells every node; opaque
    * @param description what the Spark UI shows, if the caller has set nothing
    * @param gang `barrier` for one barrier stage, `tasks` for a gang of tasks
    * @param least with how many tasks of a gang of tasks the job goes on
    * @param profile Spark's number of the resource profile of the tasks; 0 for the application's
    */
  def runPython(
      sc: SparkContext,
      tasks: Int,
      spec: Array[Byte],
      payload: Array[Byte],
      description: String,
      gang: String,
      least: Int,
      profile: Int
  ): Unit = run(sc, tasks, description, new NodeTask(spec, payload), gang, least, profile)

  /** As the other, for a large payload: py4j sends bytes as one line of text, and a closure is one array.
    *
    * @param payloadFile the payload's file, which has to stay until this returns
    */
  def runPython(
      sc: SparkContext,
      tasks: Int,
      spec: Array[Byte],
      payloadFile: String,
      description: String,
      gang: String,
      least: Int,
      profile: Int
  ): Unit = NodeTask.withPayloadFile(sc, spec, payloadFile)(run(sc, tasks, description, _, gang, least, profile))

  /** Ends what `runPython` runs in a thread whose jobs have this tag, also before it has a job: while a gang of tasks
    * waits for its turn or for slots, Spark has none to cancel. Returns at once.
    */
  def cancel(sc: SparkContext, tag: String): Unit = Seats.cancel(sc, tag)

  /** Submits the seat of a partition once more, in a gang of tasks that this runs for Python in a thread whose jobs
    * have this tag. Returns at once.
    */
  def addSeat(tag: String, partition: Int): Unit = Seats.add(tag, partition)

  /** Ends the other jobs of a partition's seat, once that of a stage of Spark's has it. Returns at once. */
  def endOtherSeats(tag: String, partition: Int, stage: Int): Unit = Seats.endOthers(tag, partition, stage)

  /** Runs a gang of tasks whose nodes are in Python workers, for the Python driver. Blocks until all are over.
    *
    * @param rows a partition for each task, which runs where it is computed; it gives why the task failed, as UTF-8,
    *   or nothing
    * @param least with how many of them the job goes on
    * @param profile Spark's number of the profile that they have
    */
  def runPythonSeats(rows: JavaRDD[Array[Byte]], least: Int, profile: Int): Unit =
    Seats.runPython(rows.rdd, least, profile)

  /** How Spark's scheduler has the stage with this tag, or the gang of tasks of so many `seats`, of this profile:
    * `running slots free`, -1 running where nothing is submitted yet, and then the tasks on executors that Spark
    * decommissions.
    */
  def stageLook(sc: SparkContext, tag: String, seats: Int, profile: Int): String = {
    val StageLook(running, slots, free, leaving) = StageLook.of(sc, tag, seats, profile)
    leaving.foldLeft(s"${running.getOrElse(-1)} $slots $free")((said, task) => s"$said $task")
  }

  /** Lets executors reach the hub of a job in the Python driver through Spark, until `endTunnels`: for a stage of
    * Python workers, which that driver runs by Spark's own means.
    *
    * @param job its id
    * @param hub where the hub is, `host:port`
    */
  def beginTunnels(job: String, hub: String): Unit = TunnelExits.here.begin(job, socketAddress(hub))

  /** That stage is over. */
  def endTunnels(job: String): Unit = TunnelExits.here.end(job)

  /** Runs `task` in so many tasks; what `runPython` does. */
  private[spark] def run(
      sc: SparkContext,
      tasks: Int,
      description: String,
      task: NodeTask,
      gang: String,
      least: Int,
      profile: Int = RunProfile.OfApplication
  ): Unit = {
    OwnJar.ship(sc)
    val hub = hubOf(task.spec)
    val described = sc.getLocalProperty(Description) != null
    if (!described) sc.setLocalProperty(Description, description)
    hub.foreach { case (job, _) => sc.setLocalProperty(RunStore.RunProperty, job) }
    try withTunnel(hub)(runGang(sc, tasks, least, task, gang, profile))
    catch {
      case NonFatal(problem) =>
        val failure = StageFailure.of(problem)
        throw (if (failure.isCancellation) problem
               else new TrainingException(failure.kind, failure.sentence, problem))
    } finally {
      if (!described) sc.setLocalProperty(Description, null)
      hub.foreach(_ => sc.setLocalProperty(RunStore.RunProperty, null))
    }
  }

  private def runGang(
      sc: SparkContext,
      tasks: Int,
      least: Int,
      task: NodeTask,
      gang: String,
      profile: Int
  ): Unit = gang match {
    case "tasks"   => Seats.run(sc, tasks, least, task, profile)
    case "barrier" =>
      RunProfile.rows(sc, tasks, profile).barrier().mapPartitions(identity(_)).foreachPartition(task)
    case other => throw new IllegalArgumentException(s"a gang is barrier or tasks, not $other")
  }

  /** The id of the job and where its hub is; none without the native library on this driver. */
  private def hubOf(spec: Array[Byte]): Option[(String, String)] =
    try Core(_.hubOf(spec)) match {
        case Array(job, address) => Some(job -> address)
        case _                   => None
      }
    catch { case problem: TrainingException if problem.kind == "start" => None }

  /** Runs a stage whose executors may reach the hub through Spark. */
  private def withTunnel[T](hub: Option[(String, String)])(stage: => T): T = hub match {
    case Some((job, address)) => TunnelExits.here.servingWhile(job, socketAddress(address))(stage)
    case None                 => stage
  }

  private def socketAddress(address: String): InetSocketAddress =
    new InetSocketAddress(NodeTask.hostOf(address), address.drop(address.lastIndexOf(':') + 1).toInt)
}
