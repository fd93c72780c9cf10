package dev.phalanx.spark

import java.time.Duration

import scala.annotation.varargs
import scala.jdk.CollectionConverters._

/** The options of a run, as one value. What isn't said is what the session's settings say.
  *
  * {{{
  * val careful = new Options().withMaxRestarts(2).withHangTimeout(Duration.ofMinutes(10))
  * new TorchDistributor(4, localMode = false, useGpu = false).withOptions(careful).run("train.py")
  * }}}
  *
  * Options never change: each method returns others.
  */
final class Options private (
    private[spark] val settings: Map[String, String],
    private[spark] val variables: Map[String, String]
) extends WithOptions[Options] {

  /** Options that say nothing. */
  def this() = this(Map.empty, Map.empty)

  /** These with those that `options` says, in the place of their own; variables are added. */
  def withOptions(options: Options): Options =
    new Options(settings ++ options.settings, variables ++ options.variables)

  override private[spark] def having(settings: (String, String)*): Options =
    new Options(this.settings ++ settings, variables)

  override private[spark] def adding(variables: Map[String, String]): Options =
    new Options(settings, this.variables ++ variables)

  override def equals(other: Any): Boolean = other match {
    case that: Options => settings == that.settings && variables == that.variables
    case _             => false
  }

  override def hashCode: Int = (settings, variables).##

  /** The settings, and the variables without their values, which may be secrets. */
  override def toString: String = {
    val said = settings.toSeq.sorted.map { case (key, value) => s"$key=$value" }
    val names = if (variables.isEmpty) Nil else Seq(variables.keys.toSeq.sorted.mkString("env=[", ", ", "]"))
    (said ++ names).mkString("Options(", ", ", ")")
  }
}

/** What has the options of a run. They are those of Python's `phalanx.Options`, whose table of settings this follows.
  * A class, since Java would see `Object` as what the methods of a trait return.
  *
  * @tparam Own what its methods return
  */
abstract class WithOptions[Own] private[spark] () {

  /** The same with these settings. */
  private[spark] def having(settings: (String, String)*): Own

  /** The same with these variables for the ranks, too. */
  private[spark] def adding(variables: Map[String, String]): Own

  /** Has the ranks start again after a failure, at most `count` times in a run. */
  def withMaxRestarts(count: Int): Own = having("spark.phalanx.maxRestarts" -> count.toString)

  /** Has the ranks start again only after these kinds of failure (`TrainingException.kind`). By default they are
    * `lost_node`, `signal` and `hang`.
    */
  @varargs def withRestartOn(kinds: String*): Own = having("spark.phalanx.restartOn" -> kinds.mkString(","))

  /** Has the ranks start again at most `count` times in a run because a host was announced to go, which is no
    * restart. By default that is as often as it happens.
    */
  def withMaxPreemptions(count: Int): Own = having("spark.phalanx.maxPreemptions" -> count.toString)

  /** Has a run fail, with the stacks of all ranks, when no rank makes progress for this time. */
  def withHangTimeout(time: Duration): Own = having("spark.phalanx.hangTimeout" -> s"${time.toMillis}ms")

  /** Gives the ranks this time between SIGTERM and SIGKILL when a run is ended. */
  def withGrace(time: Duration): Own = having("spark.phalanx.grace" -> s"${time.toMillis}ms")

  /** Has the ranks forked from a process that has imported torch already, or not. */
  def withWarm(enabled: Boolean): Own = having("spark.phalanx.warm.enabled" -> enabled.toString)

  /** Has the ranks compute with this many cores each, unless the environment has `OMP_NUM_THREADS`. */
  def withCpusPerRank(count: Int): Own = having("spark.phalanx.cpusPerRank" -> count.toString)

  /** Has each of the run's tasks take this many cores, whatever `spark.task.cpus` says. */
  def withTaskCpus(count: Int): Own = having("spark.phalanx.taskCpus" -> count.toString)

  /** Gives each rank this many whole GPUs, whatever `spark.task.resource.gpu.amount` says; it is then a task of its
    * own.
    */
  def withGpusPerRank(count: Int): Own = having("spark.phalanx.gpusPerRank" -> count.toString)

  /** Gives each rank this much memory beside the executor's own, such as `4g`: on YARN and Kubernetes with dynamic
    * allocation.
    */
  def withMemoryPerRank(size: String): Own = having("spark.phalanx.memoryPerRank" -> size)

  /** Has the ranks' checkpoints (`phalanx.checkpoint`) in this folder, which all hosts share, or at this URI, which
    * Python's fsspec opens.
    */
  def withCheckpointDir(directory: String): Own = having("spark.phalanx.checkpoint.directory" -> directory)

  /** Gives the checkpoints this name, which tells them from those of other runs in the same folder. Runs that were
    * given a name share what has it. By default it is the name of what is run, and they belong to the user and the
    * file or module: another's run is refused by its ranks.
    */
  def withCheckpointName(name: String): Own = having("spark.phalanx.checkpoint.name" -> name)

  /** Gives the ranks these variables in their environment, besides those that `spark.phalanx.env.pass` names. The
    * values are in no setting, argument or log.
    */
  def withEnv(variables: Map[String, String]): Own = adding(variables)

  /** As the other, for Java. */
  def withEnv(variables: java.util.Map[String, String]): Own = adding(variables.asScala.toMap)

  /** What counts as a node, as in `LOCAL_RANK`, `GROUP_RANK` and `CUDA_VISIBLE_DEVICES`: a Spark task (`task`), or a
    * host with all its tasks (`host`). By default it is a task.
    */
  def withLocalRanks(by: String): Own = having("spark.phalanx.localRanks" -> by)

  /** Has a run go on with no fewer ranks than this; it has `numProcesses` at most. By default it always has all. */
  def withMinProcesses(count: Int): Own = having("spark.phalanx.elastic.minProcesses" -> count.toString)

  /** What the run's tasks are to Spark: one stage whose tasks start together (`barrier`), or a job each, for which
    * Spark also starts executors (`tasks`). By default they are a job each where dynamic allocation is on.
    */
  def withGang(kind: String): Own = having("spark.phalanx.gang" -> kind)

  /** Shows this of the ranks' output: `all`, `dedup` (equal lines of several ranks once), `errors` (the newest of a
    * rank that failed), `off`, or that of some ranks, `0,8`. By default it is all of up to 8 ranks, and of more
    * `dedup`.
    */
  def withLogs(shown: String): Own = having("spark.phalanx.logs" -> shown)

  /** Shows the output of these ranks. */
  @varargs def withLogs(rank: Int, more: Int*): Own = withLogs((rank +: more).mkString(","))
}
