package dev.phalanx.spark

import scala.annotation.nowarn

/** The Rust core, `libphalanx_jni.so`. One instance, had through [[Core]], which also hands on the core's log
  * records.
  *
  * Every error and every panic of the core is thrown as [[TrainingException]]. A hub is a number; a stale one is an
  * error. Nothing here is kept by the core once a call has returned, but for the hub of `openHub`.
  */
@nowarn("cat=unused-params")
final private[spark] class Native {

  /** The version of Phalanx that the library was built from. */
  @native def version(): String

  /** A job's JSON. `settings` are keys and values, in turn, of all `spark.phalanx.*` settings. */
  @native def newJob(name: String, ranks: Int, tasks: Int, useGpu: Boolean, settings: Array[String]): Array[Byte]

  /** A sentence for each unknown `spark.phalanx.*` key; throws for a bad value. */
  @native def settingWarnings(settings: Array[String]): Array[String]

  @native def slotsTimeoutMillis(settings: Array[String]): Long

  /** `auto`, `jvm` or `python`. */
  @native def stageChoice(settings: Array[String]): String

  @native def openHub(job: Array[Byte], bind: String, advertise: String, workDir: String): Long

  @native def hubAddress(hub: Long): String

  @native def hubToken(hub: Long): Array[Byte]

  /** The next event, or null at the time-out: `output, text`; `phase, name, rank or -1, seconds`; `finished, ranks`;
    * `status, text`; `report, rank, step, values`; `resubmit, attempt`; `failed, failure, text`.
    */
  @native def nextEvent(hub: Long, timeoutMillis: Long): Array[String]

  /** The file with a rank's result; null if there is none. */
  @native def resultPath(hub: Long, rank: Int): String

  /** The newest whole lines of a rank's output that have come here; empty for an unknown rank. */
  @native def logs(hub: Long, rank: Int): String

  /** What the ranks' threads are doing: all as one text, equal ones once, then rank and text in turn; null at the
    * time-out. Nodes are waited for 5 s. For a thread other than the one that waits in `nextEvent`.
    */
  @native def stacks(hub: Long, timeoutMillis: Long): Array[String]

  @native def nodeReport(hub: Long, report: Array[Byte]): Unit

  /** Tells the hub that the stage that was submitted for `attempt` is over; `problem` is null if it ended well. */
  @native def stageEnded(hub: Long, attempt: Int, problem: String): Unit

  @native def stop(hub: Long, reason: String): Unit

  @native def closeHub(hub: Long): Unit

  /** Runs one node of a job to its end; the bytes are a report for `nodeReport` if the hub could not be told. `pool`
    * is the program of a warm pool for ranks that run `program`; empty if there is none.
    */
  @native def runNode(
      job: Array[Byte],
      payload: Array[Byte],
      hub: String,
      token: Array[Byte],
      partition: Int,
      attempt: Int,
      host: String,
      gpus: Array[String],
      program: Array[String],
      pool: Array[String],
      env: Array[String],
      workDir: String,
      guard: String,
      node: NodeHost
  ): Array[Byte]

  /** Starts, in the background, the warm pool that a run with these settings would have, unless they turn it off. */
  @native def prestartPool(
      settings: Array[String],
      guard: String,
      program: Array[String],
      env: Array[String]
  ): Unit

  /** The warm pools of this JVM: how many, their resident bytes, how many guards came from pools so far. */
  @native def poolUsage(): Array[Long]

  /** Ends the warm pools of this JVM, and the ranks that came from them. */
  @native def endPools(): Unit

  /** Level and text, in turn, of the log records that have come up since the last call. */
  @native def drainLogs(): Array[String]

  /** Panics with this message: for the test that a panic becomes an exception. */
  @native def panicForTest(message: String): Unit
}
