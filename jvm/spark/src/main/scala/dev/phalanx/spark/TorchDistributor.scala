package dev.phalanx.spark

import java.io.File

import scala.annotation.varargs
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

import dev.phalanx.spark.driver._
import dev.phalanx.spark.internal.SparkInternals
import dev.phalanx.spark.jni.Core

/** Runs PyTorch training as ranks, on the driver or in a Spark stage, from Scala or Java.
  *
  * {{{
  * val result = new TorchDistributor(numProcesses = 4, localMode = false, useGpu = false).run("train.py", "--lr=0.01")
  * println(result.resultJson)
  * }}}
  *
  * What runs is Python: a file, a module, or a program of its own. Each rank has torchrun's environment, so
  * `torch.distributed.init_process_group("gloo")` works as it is. A run returns what rank 0 gives to
  * `phalanx.set_result`.
  *
  * Values of the `with` methods, which are those of [[Options]], win over the session's settings:
  *
  * {{{
  * val run = new TorchDistributor(4, localMode = false, useGpu = false)
  *   .withMaxRestarts(3)
  *   .withHangTimeout(Duration.ofMinutes(10))
  *   .start("train.py")                 // returns at once; see Run
  * }}}
  *
  * JAR-8 (as-python): rules, messages and log lines are those of Python's `phalanx.TorchDistributor`. As RUN-2, what
  * can be known to be wrong throws before anything is started. A distributor never changes. It can be used again, and
  * by several threads at once.
  */
class TorchDistributor private (
    numProcesses: Int,
    localMode: Boolean,
    useGpu: Boolean,
    options: Options
) extends WithOptions[TorchDistributor] {
  private val log = LoggerFactory.getLogger(classOf[TorchDistributor])

  private val spark = SparkSession.getActiveSession
    .orElse(SparkSession.getDefaultSession)
    .getOrElse(
      throw new IllegalStateException(
        "TorchDistributor needs an active SparkSession; create one with SparkSession.builder.getOrCreate()"
      )
    )
  private val sc = spark.sparkContext

  /** How many GPUs a rank has on the cluster may be said after the constructor; all else is refused there. */
  private lazy val plan =
    Preflight.plan(numProcesses, localMode, useGpu, sc.resources.contains("gpu"), ofRun, log)
  if (localMode || !useGpu) plan: Unit

  /** How many ranks there will be: `numProcesses`, or in local mode no more than the driver has GPUs. Throws
    * `IllegalStateException` where GPUs are wanted that Spark doesn't know of.
    */
  lazy val numRanks: Int = plan.ranks

  /** @param numProcesses the number of ranks
    * @param localMode whether the ranks run on the driver's host; otherwise they run in tasks of the cluster
    * @param useGpu whether each rank has a GPU of its own
    */
  def this(numProcesses: Int = 1, localMode: Boolean = true, useGpu: Boolean = true) =
    this(numProcesses, localMode, useGpu, new Options())

  /** All ranks on the driver, with GPUs. */
  def this(numProcesses: Int) = this(numProcesses, true, true)

  /** A distributor that has also the options that `options` says, in the place of its own. */
  def withOptions(options: Options): TorchDistributor = changed(this.options.withOptions(options))

  override private[spark] def having(settings: (String, String)*): TorchDistributor =
    changed(options.having(settings: _*))

  override private[spark] def adding(variables: Map[String, String]): TorchDistributor =
    changed(options.adding(variables))

  private def changed(options: Options) = new TorchDistributor(numProcesses, localMode, useGpu, options)

  /** Trains by a Python file, with `args` as its command line.
    *
    * `path` is a local file, the URI of one that Hadoop can read (`hdfs:`, `s3a:`), or the name of one that Spark
    * shipped (`--files`). Blocks until the training is over, and shows the ranks' output on stdout meanwhile; an
    * interrupt of this thread cancels it.
    *
    * {{{
    * val result = new TorchDistributor(2, localMode = false, useGpu = false).run("train.py", "--epochs=3")
    * }}}
    *
    * Throws [[TrainingException]] where the training fails or can't be had; `java.io.IOException` where the file
    * can't be read.
    */
  @varargs def run(path: String, args: String*): TrainingResult = train(file(path, args))

  /** As `run`, but returns at once. It throws what is wrong before the start. */
  @varargs def start(path: String, args: String*): Run = begin(file(path, args))

  /** Trains by a Python module that the ranks can import, as `python -m` runs it. The rest is as for `run`.
    *
    * {{{
    * sc.addFile("trainer.zip")
    * new TorchDistributor(2, localMode = false, useGpu = false).runModule("pkg.train", "--epochs=3")
    * }}}
    */
  @varargs def runModule(name: String, args: String*): TrainingResult = train(module(name, args))

  /** As `runModule`, but returns at once. */
  @varargs def startModule(name: String, args: String*): Run = begin(module(name, args))

  /** Trains by a program of its own, which gets torchrun's environment. The rest is as for `run`.
    *
    * {{{
    * new TorchDistributor(2, localMode = false, useGpu = false).runProgram(Seq("/opt/trainer", "--epochs=3"))
    * }}}
    */
  def runProgram(command: Seq[String]): TrainingResult = train(program(command))

  /** As the other, for Java. */
  def runProgram(command: java.util.List[String]): TrainingResult = runProgram(command.asScala.toVector)

  /** As `runProgram`, but returns at once. */
  def startProgram(command: Seq[String]): Run = begin(program(command))

  /** As the other, for Java. */
  def startProgram(command: java.util.List[String]): Run = startProgram(command.asScala.toVector)

  private def file(path: String, args: Seq[String]): Training = {
    val file = TrainFile.find(path, sc.hadoopConfiguration)
    // Of one in a remote file system only the name is told to ranks.
    val place = if (file.path.startsWith("/")) file.path else path
    Training(file.name, Payload.file(file, args), python, owner("file", place))
  }

  private def module(name: String, args: Seq[String]) =
    Training(name, Payload.module(name, args), python, owner("module", name))

  private def program(command: Seq[String]): Training = {
    if (command.isEmpty) throw new IllegalArgumentException("a program has to have a name")
    val name = new File(command.head).getName
    Training(name, Payload.none, RankProgram.Command(command), owner("program", command.head))
  }

  private def owner(kind: String, place: String) =
    Settings.owner(sys.env.getOrElse("JUPYTERHUB_USER", sc.sparkUser), kind, place)

  private def python = RankProgram.Python(RankProgram.pythonOf(conf))

  private def train(training: Training): TrainingResult = {
    val run = prepared(training)
    log.info(s"Started $where")
    val result = run.drive()
    log.info(s"Finished $where")
    result
  }

  private def begin(training: Training): Run = {
    val run = prepared(training)
    log.info(s"Started $where")
    run.start()
  }

  /** A run that can be driven; all checks are done. */
  private def prepared(training: Training): Run = {
    val all = Settings.of(spark.conf.getAll ++ options.settings)
    Core(_.settingWarnings(all)).foreach(log.warn)
    val beside = Settings.localMode(localMode) ++ training.owner
    val job = Job(training.name, numRanks, plan.tasks, useGpu, all ++ beside)
    val slotsTimeout = Core(_.slotsTimeoutMillis(all))
    val own = options.variables.toArray.flatMap { case (name, value) => Seq(name, value) }
    val ofRanks = Core(_.rankVariables(all, own)).toSeq
    val application = sc.getConf
    def ofApplication(key: String) = if (key.startsWith(Settings.Prefix)) ofRun(key) else application.getOption(key)
    val taken = Preflight.profile(useGpu, localMode, sc.version, ofApplication(_))
    val profile = taken.fold(RunProfile.OfApplication)(_.in(sc))
    if (!localMode) {
      Preflight.mayStart(ofRun, log)
      val slots = () => SparkInternals.taskSlots(sc, profile)
      Preflight.awaitSlots(job.leastTasks, sc.master, application.getOption, taken, slotsTimeout, log, slots)
    }
    val (bind, advertise) =
      if (localMode) ("127.0.0.1", "127.0.0.1")
      else {
        val driver = conf("spark.driver.host").getOrElse(SparkInternals.hostName)
        Settings.hubEndpoint(all, conf("spark.driver.bindAddress").getOrElse(""), driver)
      }
    val lease = leased()
    try {
      val itsStage = stage(training, job, lease.gpus, ofRanks, profile, slotsTimeout)
      new Run(training.name, job, bind, advertise, itsStage, lease)
    } catch {
      case problem: Throwable =>
        lease.close()
        throw problem
    }
  }

  private def stage(
      training: Training,
      job: Job,
      gpus: Seq[String],
      variables: Seq[String],
      profile: Int,
      slotsTimeout: Long
  ): Stage = {
    val Training(name, payload, program, _) = training
    val ranks = RankOptions(program, PyFiles.shipped(sc), gpus, variables)
    if (localMode) new LocalStage(payload, ranks)
    else {
      val description = s"Phalanx: $name, $numRanks ranks"
      new SparkStage(sc, payload, ranks, plan.tasks, job.leastTasks, job.gang, profile, description, slotsTimeout)
    }
  }

  /** The driver's GPUs for a run: in local mode, and on a local master, whose tasks get none. */
  private def leased(): GpuLease = {
    val addresses = sc.resources.get("gpu").fold(Seq.empty[String])(_.addresses.toSeq)
    GpuLease.take(numRanks, useGpu, localMode, sc.master, addresses)
  }

  private def where =
    if (localMode) s"local training with $numRanks processes"
    else s"distributed training with $numRanks executor processes"

  private def conf(key: String): Option[String] = spark.conf.getOption(key)

  /** The same, but for what the options say. */
  private def ofRun(key: String): Option[String] = options.settings.get(key).orElse(conf(key))
}

/** What is to be trained by, and whose its checkpoints are, as the core takes that. */
final private[spark] case class Training(
    name: String,
    payload: Array[Byte],
    program: RankProgram,
    owner: Array[String]
)
