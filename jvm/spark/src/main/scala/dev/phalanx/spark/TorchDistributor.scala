package dev.phalanx.spark

import java.io.File
import java.time.Duration

import scala.annotation.varargs
import scala.jdk.CollectionConverters._

import org.apache.spark.sql.SparkSession
import org.slf4j.LoggerFactory

/** Runs PyTorch training as ranks, on the driver or in a Spark stage, from Scala or Java.
  *
  * {{{
  * val result = new TorchDistributor(numProcesses = 4, localMode = false, useGpu = false).run("train.py", "--lr=0.01")
  * println(result.resultJson)
  * }}}
  *
  * What runs is Python: a file, a module, or a program of its own. Each rank has torchrun's environment, so
  * `torch.distributed.init_process_group("gloo")` works as it is. What rank 0 gives to `phalanx.set_result` comes
  * back.
  *
  * What is given by the `with` methods goes before the session's settings:
  *
  * {{{
  * val run = new TorchDistributor(4, localMode = false, useGpu = false)
  *   .withMaxRestarts(3)
  *   .withHangTimeout(Duration.ofMinutes(10))
  *   .start("train.py")                 // returns at once; see Run
  * }}}
  *
  * DIST-1: rules, messages and log lines are those of Python's `phalanx.TorchDistributor`. DIST-2: whatever can be
  * known to be wrong throws before anything is started. A distributor never changes, and can be used again, and by
  * several threads at once.
  */
class TorchDistributor private (
    numProcesses: Int,
    localMode: Boolean,
    useGpu: Boolean,
    settings: Map[String, String]
) {
  private val log = LoggerFactory.getLogger(classOf[TorchDistributor])

  private val spark = SparkSession.getActiveSession
    .orElse(SparkSession.getDefaultSession)
    .getOrElse(
      Checks.refuse(
        "TorchDistributor needs an active SparkSession; make one by SparkSession.builder.getOrCreate()"
      )
    )
  private val sc = spark.sparkContext

  /** How many ranks there will be: `numProcesses`, or in local mode no more than the driver has GPUs. */
  val numRanks: Int = {
    val wanted = Checks.numProcesses(numProcesses)
    if (localMode && useGpu) Gpus.driverLimited(wanted, conf, sc.resources.keySet.toSet, log) else wanted
  }

  private val numTasks = if (localMode) 1 else Gpus.numTasks(numRanks, useGpu, conf)

  /** @param numProcesses how many ranks
    * @param localMode whether they run on the driver; else they run in tasks of the cluster
    * @param useGpu whether each has a GPU of its own
    */
  def this(numProcesses: Int = 1, localMode: Boolean = true, useGpu: Boolean = true) =
    this(numProcesses, localMode, useGpu, Map.empty)

  /** All ranks on the driver, with GPUs. */
  def this(numProcesses: Int) = this(numProcesses, true, true)

  /** One whose ranks start again after a failure, so often at most, all failures together. */
  def withMaxRestarts(count: Int): TorchDistributor = having(Settings.maxRestarts(count))

  /** One whose ranks do so after these kinds of failure only (`TrainingException.kind`); by default `lost_node`,
    * `signal` and `hang`.
    */
  @varargs def withRestartOn(kinds: String*): TorchDistributor = having(Settings.restartOn(kinds))

  /** One whose runs fail, with the stacks of all ranks, when none has made progress for so long. */
  def withHangTimeout(time: Duration): TorchDistributor = having(Settings.hangTimeout(time))

  /** One whose ranks have so long between SIGTERM and SIGKILL when a run is ended. */
  def withGrace(time: Duration): TorchDistributor = having(Settings.grace(time))

  /** One whose ranks are forked from a process that has torch imported already, or are not. */
  def withWarm(enabled: Boolean): TorchDistributor = having(Settings.warm(enabled))

  private def having(setting: (String, String)) =
    new TorchDistributor(numRanks, localMode, useGpu, settings + setting)

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

  /** As `run`, but returns at once; throws what is wrong before the start. */
  @varargs def start(path: String, args: String*): Run = begin(file(path, args))

  /** Trains by a Python module that the ranks can import, as `python -m` runs it; else as `run`.
    *
    * {{{
    * sc.addFile("trainer.zip")
    * new TorchDistributor(2, localMode = false, useGpu = false).runModule("pkg.train", "--epochs=3")
    * }}}
    */
  @varargs def runModule(name: String, args: String*): TrainingResult = train(module(name, args))

  /** As `runModule`, but returns at once. */
  @varargs def startModule(name: String, args: String*): Run = begin(module(name, args))

  /** Trains by a program of its own, which gets torchrun's environment; else as `run`.
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
    Training(file.name, Payload.file(file.path, file.source, args), python)
  }

  private def module(name: String, args: Seq[String]) = Training(name, Payload.module(name, args), python)

  private def program(command: Seq[String]): Training = {
    if (command.isEmpty) throw new IllegalArgumentException("a program has to have a name")
    Training(new File(command.head).getName, Payload.none, RankProgram.Native(command))
  }

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
    val all = Settings.of(spark.conf.getAll ++ settings)
    Core(_.settingWarnings(all)).foreach(log.warn)
    val job = Core(_.newJob(training.name, numRanks, numTasks, useGpu, all))
    val slotsTimeout = Core(_.slotsTimeoutMillis(all))
    if (!localMode) {
      Checks.encryption(conf, log)
      Checks.dynamicAllocation(conf)
      Checks.slots(
        sc.master,
        conf,
        numTasks,
        slotsTimeout,
        log,
        () => SparkInternals.taskSlots(sc)
      )
    }
    val (bind, advertise) =
      if (localMode) ("127.0.0.1", "127.0.0.1")
      else
        (
          conf("spark.driver.bindAddress").getOrElse(""),
          conf("spark.driver.host").getOrElse(SparkInternals.hostName)
        )
    val lease = leased()
    try new Run(training.name, job, bind, advertise, stage(job, training, lease.gpus, slotsTimeout), lease)
    catch {
      case problem: Throwable =>
        lease.close()
        throw problem
    }
  }

  private def stage(job: Array[Byte], training: Training, gpus: Seq[String], slotsTimeout: Long): Stage = {
    val Training(name, payload, program) = training
    val pyFiles = PyFiles.shipped(sc)
    if (localMode) new LocalStage(job, payload, gpus, program, pyFiles)
    else {
      val description = s"Phalanx: $name, $numRanks ranks"
      new SparkStage(sc, job, payload, numTasks, description, gpus, program, pyFiles, slotsTimeout)
    }
  }

  /** The driver's GPUs for a run: in local mode, and on a local master, whose tasks get none. */
  private def leased(): GpuLease =
    if (!useGpu || !(localMode || Checks.isLocal(sc.master))) GpuLease.take(Vector.empty, 0)
    else {
      val addresses = sc.resources.get("gpu").fold(Seq.empty[String])(_.addresses.toSeq)
      GpuLease.take(Gpus.devices(addresses, sys.env.get(Gpus.Visible)), numRanks)
    }

  private def where =
    if (localMode) s"local training with $numRanks processes"
    else s"distributed training with $numRanks executor processes"

  private def conf(key: String): Option[String] = spark.conf.getOption(key)
}

/** What is to be trained by. */
final private[spark] case class Training(name: String, payload: Array[Byte], program: RankProgram)
