package dev.phalanx.spark

import java.io.File
import java.net.URI

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.apache.spark.broadcast.Broadcast
import org.slf4j.LoggerFactory

/** The jvm stage: a barrier stage of an RDD, without SQL, with one task for each node of a job.
  *
  * STAGE-2: the caller's Spark properties (job group, tags, pool) hold for the stage, and nothing that the stage sets
  * is left behind in the caller's.
  */
object BarrierRunner {
  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val Description = "spark.job.description"

  /** The version of this jar. */
  def version(): String = Version.phalanx

  /** Runs the nodes of a job whose hub is elsewhere: in the Python driver, which calls this by py4j.
    *
    * Blocks until the Spark job is over. Throws [[TrainingException]] with the reason in a sentence where the stage
    * failed, and Spark's own exception where its job was cancelled.
    *
    * {{{
    * jvm.dev.phalanx.spark.BarrierRunner.runPython(jsc.sc(), job, payload, hub.address, hub.token, 0,
    *                                               "Phalanx: train, 8 ranks", [], sc.pythonExec, sc.environment, [])
    * }}}
    *
    * @param attempt the attempt that the nodes begin with: 0, or what the hub wanted the stage submitted again for
    * @param description what the Spark UI shows, if the caller has set nothing
    * @param localGpus the driver's GPUs, for the tasks of a local master
    * @param pythonExec the Python of the ranks
    * @param env the application's environment for Python
    * @param pyFiles names of Python packages among Spark's files
    * @return reports of nodes that could not reach the hub
    */
  def runPython(
      sc: SparkContext,
      job: Array[Byte],
      payload: Array[Byte],
      hubAddress: String,
      token: Array[Byte],
      attempt: Int,
      description: String,
      localGpus: java.util.List[String],
      pythonExec: String,
      env: java.util.Map[String, String],
      pyFiles: java.util.List[String]
  ): java.util.List[Array[Byte]] =
    run(
      sc,
      tasksOf(job),
      description,
      pythonTask(job, payload, hubAddress, token, attempt, localGpus, pythonExec, env, pyFiles)
    ).asJava

  /** As the other, for a large payload: py4j sends bytes as one line of text, and a closure is one array.
    *
    * @param payloadFile the payload's file, which has to stay until this returns
    */
  def runPython(
      sc: SparkContext,
      job: Array[Byte],
      payloadFile: String,
      hubAddress: String,
      token: Array[Byte],
      attempt: Int,
      description: String,
      localGpus: java.util.List[String],
      pythonExec: String,
      env: java.util.Map[String, String],
      pyFiles: java.util.List[String]
  ): java.util.List[Array[Byte]] = {
    val payload = sc.broadcast(new PayloadFile(payloadFile))
    val task =
      pythonTask(job, Array.empty, hubAddress, token, attempt, localGpus, pythonExec, env, pyFiles, Some(payload))
    try run(sc, tasksOf(job), description, task).asJava
    finally payload.destroy()
  }

  private def pythonTask(
      job: Array[Byte],
      payload: Array[Byte],
      hubAddress: String,
      token: Array[Byte],
      attempt: Int,
      localGpus: java.util.List[String],
      pythonExec: String,
      env: java.util.Map[String, String],
      pyFiles: java.util.List[String],
      payloadFile: Option[Broadcast[PayloadFile]] = None
  ): NodeTask = new NodeTask(
    job,
    payload,
    hubAddress,
    token,
    attempt,
    localGpus.asScala.toVector,
    RankProgram.Python(pythonExec),
    env.asScala.toMap,
    pyFiles.asScala.toVector,
    payloadFile
  )

  private def tasksOf(job: Array[Byte]): Int = Json.read(job).path("tasks").asInt()

  /** Runs `task` in so many tasks; what `runPython` does. */
  private[spark] def run(sc: SparkContext, tasks: Int, description: String, task: NodeTask): Seq[Array[Byte]] = {
    shipJar(sc)
    val described = sc.getLocalProperty(Description) != null
    if (!described) sc.setLocalProperty(Description, description)
    try sc.parallelize(0 until tasks, tasks).barrier().mapPartitions(task).collect().toVector
    catch {
      case NonFatal(problem) if !StageFailure.isCancellation(problem) =>
        throw new TrainingException("start", StageFailure.explain(problem), problem)
    } finally if (!described) sc.setLocalProperty(Description, null)
  }

  /** Adds this jar to the application where it is on the driver's class path only. */
  private def shipJar(sc: SparkContext): Unit = {
    val jar = ownJar
    if (jar != null && !Checks.isLocal(sc.master)) {
      val names = sc.listJars().map(path => path.substring(path.lastIndexOf('/') + 1))
      if (!names.contains(jar.getName)) {
        log.info(s"Shipping ${jar.getName} to the executors")
        sc.addJar(jar.getPath)
      }
    }
  }

  /** The jar that this class comes from; null where it is in a folder of classes. */
  private lazy val ownJar: File =
    try {
      val file = new File(new URI(getClass.getProtectionDomain.getCodeSource.getLocation.toString))
      if (file.isFile) file else null
    } catch { case NonFatal(_) => null }
}
