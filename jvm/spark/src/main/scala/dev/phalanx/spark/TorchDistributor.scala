package dev.phalanx.spark

import java.io.File

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
  * DIST-1: rules, messages and log lines are those of Python's `phalanx.TorchDistributor`. DIST-2: whatever can be
  * known to be wrong throws before anything is started. A distributor can be used again, and by several threads at
  * once.
  *
  * @param numProcesses how many ranks
  * @param localMode whether they run on the driver; else they run in tasks of the cluster
  * @param useGpu whether each has a GPU of its own
  */
class TorchDistributor(numProcesses: Int = 1, localMode: Boolean = true, useGpu: Boolean = true) {
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

  /** All ranks on the driver, with GPUs. */
  def this(numProcesses: Int) = this(numProcesses, true, true)

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
  @varargs def run(path: String, args: String*): TrainingResult = {
    val file = TrainFile.find(path, sc.hadoopConfiguration)
    train(file.name, Payload.file(file.path, file.source, args), python)
  }

  /** Trains by a Python module that the ranks can import, as `python -m` runs it; else as `run`.
    *
    * {{{
    * sc.addFile("trainer.zip")
    * new TorchDistributor(2, localMode = false, useGpu = false).runModule("pkg.train", "--epochs=3")
    * }}}
    */
  @varargs def runModule(name: String, args: String*): TrainingResult =
    train(name, Payload.module(name, args), python)

  /** Trains by a program of its own, which gets torchrun's environment; else as `run`.
    *
    * {{{
    * new TorchDistributor(2, localMode = false, useGpu = false).runProgram(Seq("/opt/trainer", "--epochs=3"))
    * }}}
    */
  def runProgram(command: Seq[String]): TrainingResult = {
    if (command.isEmpty) throw new IllegalArgumentException("a program has to have a name")
    train(new File(command.head).getName, Payload.none, RankProgram.Native(command))
  }

  /** As the other, for Java. */
  def runProgram(command: java.util.List[String]): TrainingResult = runProgram(command.asScala.toVector)

  private def python = RankProgram.Python(RankProgram.pythonOf(conf))

  private def train(name: String, payload: Array[Byte], program: RankProgram): TrainingResult = {
    val settings = Settings.of(spark.conf.getAll)
    Core(_.settingWarnings(settings)).foreach(log.warn)
    val job = Core(_.newJob(name, numRanks, numTasks, useGpu, settings))
    val slotsTimeout = Core(_.slotsTimeoutMillis(settings))
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
    val lease = leased()
    try {
      log.info(s"Started $where")
      val result = newRun(job, name, stage(job, payload, name, lease.gpus, program, slotsTimeout)).drive()
      log.info(s"Finished $where")
      result
    } finally lease.close()
  }

  private def newRun(job: Array[Byte], name: String, stage: Stage): Run = {
    val (bind, advertise) =
      if (localMode) ("127.0.0.1", "127.0.0.1")
      else
        (
          conf("spark.driver.bindAddress").getOrElse(""),
          conf("spark.driver.host").getOrElse(SparkInternals.hostName)
        )
    val grace = Json.read(job).path("policy").path("grace").asLong()
    new Run(job, name, bind, advertise, grace, stage)
  }

  private def stage(
      job: Array[Byte],
      payload: Array[Byte],
      name: String,
      gpus: Seq[String],
      program: RankProgram,
      slotsTimeout: Long
  ): Stage = {
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
