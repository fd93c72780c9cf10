package dev.phalanx.spark.jni

import scala.annotation.nowarn

/** The Rust core, `libphalanx_jni.so`. There is one instance. Get it through [[Core]], which also hands on the core's
  * log records.
  *
  * Every error of the core is thrown as the exception of its kind (`tests/contract/errors.json`), every panic as
  * [[TrainingException]]. A hub is a number, and a stale number is an error. The core keeps nothing from here once a
  * call has returned, except the hub of `openHub` and the lease of `leaseGpus`.
  */
@nowarn("cat=unused-params")
final private[spark] class Native {

  /** The version of Phalanx that the library was built from. */
  @native def version(): String

  /** A job, packed. `settings` are keys and values, in turn, of what is set of `settingKeys`. */
  @native def newJob(name: String, ranks: Int, tasks: Int, useGpu: Boolean, settings: Array[String]): Array[Byte]

  /** The settings, and those of Spark's that they follow. */
  @native def settingKeys(): Array[String]

  /** A sentence for each unknown `spark.phalanx.*` key; throws for a bad value. */
  @native def settingWarnings(settings: Array[String]): Array[String]

  /** The variables that a caller gives its ranks, names and values in turn; throws for a name that can't be. */
  @native def rankVariables(settings: Array[String], variables: Array[String]): Array[String]

  @native def jobGraceMillis(job: Array[Byte]): Long

  /** What the tasks of a job are to Spark: one barrier stage (`barrier`), or a job each (`tasks`). */
  @native def jobGang(job: Array[Byte]): String

  /** With how many of its tasks a job goes on. */
  @native def jobLeastTasks(job: Array[Byte]): Int

  @native def slotsTimeoutMillis(settings: Array[String]): Long

  /** `spark.phalanx.grace`. */
  @native def graceMillis(settings: Array[String]): Long

  /** Where a hub binds and what tasks are told, in this order: from what Spark's driver has, and what the settings
    * `hub.bindAddress` and `hub.host` say. Empty is what nobody says.
    */
  @native def hubEndpoint(driverBind: String, driverHost: String, setBind: String, setHost: String): Array[String]

  @native def openHub(job: Array[Byte], bind: String, advertise: String, workDir: String): Long

  /** What the nodes of an attempt are told, packed. Ranks are Python's by `python`; where that is null, `program`.
    * `env` are the application's variables for them, names and values in turn; `localGpus` the driver's GPUs, for its
    * own node or for the tasks of a local master.
    */
  @native def nodeSpec(
      hub: Long,
      attempt: Int,
      python: String,
      program: Array[String],
      env: Array[String],
      localGpus: Array[String]
  ): Array[Byte]

  /** The next event: its kind, a text, and its fields as a JSON object; null at the time-out. */
  @native def nextEvent(hub: Long, timeoutMillis: Long): Array[String]

  /** The file with a rank's result; null if there is none. */
  @native def resultPath(hub: Long, rank: Int): String

  /** The newest whole lines of a rank's output that have come here; empty for an unknown rank. A closed hub has them,
    * too, until `dropLogs`.
    */
  @native def logs(hub: Long, rank: Int): String

  /** The run now, as the JSON of `rust/types/src/run_snapshot.rs`; waits for a hub that is busy, 2 s at most. */
  @native def snapshot(hub: Long): String

  /** What the ranks' threads are doing: all as one text, equal ones once, then rank and text in turn; null at the
    * time-out. Nodes are waited for 5 s. For a thread other than the one that waits in `nextEvent`.
    */
  @native def stacks(hub: Long, timeoutMillis: Long): Array[String]

  /** Tells the hub that the stage that was submitted for `attempt` is over; `problem` is null if it ended well. */
  @native def stageEnded(hub: Long, attempt: Int, problem: String): Unit

  /** Tells the hub what Spark shows of the stage that was submitted for `attempt`: how many of its tasks run
    * (negative if it isn't submitted yet), how many task slots there are, and how many of these are free.
    */
  @native def stageSeen(hub: Long, attempt: Int, running: Int, slots: Int, free: Int): Unit

  /** Spark decommissions the executors of the tasks with these attempt ids. Told again it is no news. */
  @native def decommissioned(hub: Long, tasks: Array[Long]): Unit

  @native def stop(hub: Long, reason: String): Unit

  @native def closeHub(hub: Long): Unit

  /** Gives the memory of a hub's output back, once the hub is closed; `logs` is then an error. */
  @native def dropLogs(hub: Long): Unit

  /** The id of the job of a node spec, and where its hub is (`host:port`). */
  @native def hubOf(spec: Array[Byte]): Array[String]

  /** Runs one node of a job to its end; the hub has everything then. `payload` is what the ranks execute; a large one
    * is in `payloadFile`, which stays until then, and null else. `here` is JSON of what only the task knows:
    * `partition`, `host`, `work_dir`; `gpus`, the addresses of those that Spark gave it, if it gave some; `tunnel`,
    * the near end of a way to the hub through Spark (`host:port`), if there is one. `home` is the folder of
    * `UnpackedJar`; `env` are the variables that only this machine knows, names and values in turn.
    */
  @native def runNode(
      spec: Array[Byte],
      payload: Array[Byte],
      payloadFile: String,
      here: String,
      home: String,
      env: Array[String],
      callbacks: NodeCallbacks
  ): Unit

  /** Serves the blocks of this host to the ranks of an attempt, if its name (`uname -n`) is among those `wanted`;
    * false at once where it isn't. True when the attempt or the run is over, another carrier of this host was there
    * before, or the hub is gone. `number` is this carrier's own in the run; `tunnel` is as `runNode` has it, or null.
    */
  @native def runCarrier(
      spec: Array[Byte],
      number: Int,
      wanted: Array[String],
      tunnel: String,
      callbacks: NodeCallbacks
  ): Boolean

  /** Starts, in the background, the warm pool that a run with these settings, this Python and these variables of the
    * application would have, unless they turn it off. `home` and `env` as for `runNode`.
    */
  @native def prestartPool(
      settings: Array[String],
      python: String,
      application: Array[String],
      home: String,
      env: Array[String]
  ): Unit

  /** Every metric: its name, its kind (`gauge`, `counter` or `histogram`) and who tells it (`node` or `run`), in
    * turn.
    */
  @native def metrics(): Array[String]

  /** The warm pools of this JVM: how many, their resident bytes, how many guards came from pools so far. */
  @native def poolUsage(): Array[Long]

  /** Ends the warm pools of this JVM, and the ranks that came from them. */
  @native def endPools(): Unit

  /** Level and text, in turn, of the log records that have come up since the last call. */
  @native def drainLogs(): Array[String]

  /** What `plan`, `mayStart`, `profile`, `executorCores` and `lookForSlots` ask of Spark's configuration. */
  @native def preflightKeys(): Array[String]

  /** How many ranks there will be and over how many tasks, and a warning if there is one. `conf` are keys and values,
    * in turn, of what is set of `preflightKeys`.
    */
  @native def plan(
      numProcesses: Int,
      localMode: Boolean,
      useGpu: Boolean,
      driverHasGpus: Boolean,
      conf: Array[String]
  ): Array[String]

  /** Throws where nothing, or a directory, was found at a training file's `path`, nor among Spark's files by the name
    * `shipped`.
    */
  @native def checkTrainFile(path: String, isFile: Boolean, isDirectory: Boolean, shipped: String): Unit

  /** Throws where a distributed run can't start on this cluster; else a warning, or null. */
  @native def mayStart(conf: Array[String]): String

  /** What each task of a run takes by its settings: cores and GPUs, and what each executor of the run's own has, if
    * it has such: cores, GPUs, MiB of memory beside the JVM's (0 for what the application's have), the program that
    * finds its GPUs, and whose these are. Empty where tasks take what the application's do. `spark` is Spark's
    * version. Throws for what no executor has, and for what this Spark doesn't know.
    */
  @native def profile(useGpu: Boolean, localMode: Boolean, spark: String, conf: Array[String]): Array[String]

  /** How many cores an executor has; 0 where it has all of whatever host it is on. */
  @native def executorCores(conf: Array[String]): Int

  /** Whether a run gets its slots: null if they are `there`; else milliseconds until the next look, and a line for
    * the log if there is one. Throws where they never will be. `profile` is what `profile` returned; `looks` counts
    * from 0.
    */
  @native def lookForSlots(
      tasks: Int,
      master: String,
      conf: Array[String],
      profile: Array[String],
      timeoutMillis: Long,
      there: Int,
      waitedMillis: Long,
      looks: Int
  ): Array[String]

  /** The same before a stage is submitted again: milliseconds until the next look, or 0 to submit it. */
  @native def lookBeforeRestart(tasks: Int, there: Int, waitedMillis: Long, timeoutMillis: Long): Long

  /** Takes a GPU of the driver's for each rank that runs there: a number to release them by, and the GPUs. `visible`
    * is `CUDA_VISIBLE_DEVICES`, or null.
    */
  @native def leaseGpus(
      ranks: Int,
      useGpu: Boolean,
      localMode: Boolean,
      master: String,
      addresses: Array[String],
      visible: String
  ): Array[String]

  @native def releaseGpus(lease: Long): Unit

  /** Why a stage ended: `cancelled` or `start`, and a sentence. `said` are class and message, in turn, of an
    * exception and its causes.
    */
  @native def explainStage(said: Array[String]): Array[String]

  /** A run's page: HTML from the JSON of a snapshot, of any version. */
  @native def runPage(snapshot: String): String

  /** The snapshot of a run that is over for its caller: well, where `kind` is null, or by a problem, its kind and the
    * whole story. What the hub knows of a failure stays.
    */
  @native def endedSnapshot(snapshot: String, kind: String, text: String): String

  /** The sum of the hashes of a block's rows modulo 2^64, and their polynomial. The columns stand each before those
    * below it: the number of its `ColumnKind`, how many rows, columns below it and buffers it has, and address and
    * bytes of each of Arrow's buffers. Memory has to stay as it is during the call.
    */
  @native def rowSumsOf(columns: Array[Long]): Array[Long]

  /** `spark.phalanx.predict.idleTimeout`. */
  @native def predictIdleMillis(settings: Array[String]): Long

  /** A task's connection to the process of a model, as a number; nothing is started yet. `name` says which model on
    * which device, `told` is what the process is told, as JSON; `home` and `env` as for `runNode`.
    */
  @native def openModel(name: String, told: String, python: String, home: String, env: Array[String]): Long

  /** How many rows the process is to be given at once: those of one batch of so many for the model, or of several. */
  @native def rowsAtOnce(model: Long, batchSize: Int): Long

  /** Makes room for a batch in a slot that has none under way: an open file, whether it is another than before in
    * this slot, and where in it the batch is to be written. The file stays open until there is another, or the model
    * is closed. `asked` is as `python/phalanx/scoring/serving.py` says.
    */
  @native def layOutBatch(model: Long, slot: Int, rows: Long, bytes: Long, asked: String): Array[Long]

  /** Gives the model the batch that was written into a slot; null, or why there is no model. */
  @native def giveBatch(model: Long, slot: Int, task: ModelCallbacks): String

  /** Waits for what becomes of the oldest batch under way: `done`, the nanoseconds that the model took, then an open
    * file, whether it is another than before (1 or 0), where in it the answer is, and its bytes; or `refused`, an
    * error and its traceback; or `no model`, and the same.
    */
  @native def takeBatch(model: Long, task: ModelCallbacks): Array[String]

  @native def closeModel(model: Long): Unit

  /** Has the processes of models that this JVM keeps killed. */
  @native def endModels(): Unit

  /** Fails by this kind, or panics if there is none such: for the tests that both become exceptions. */
  @native def failForTest(kind: String, message: String): Unit
}
