package dev.phalanx.spark.driver

import dev.phalanx.spark.jni.Core

/** What one run is, as the core packed it. Only the core reads it, and it answers questions about it here. */
final private[spark] class Job private (val packed: Array[Byte], tasks: Int) {

  /** Between SIGTERM and SIGKILL when the ranks are ended. */
  lazy val graceMillis: Long = Core(_.jobGraceMillis(packed))

  /** What its tasks are to Spark: `barrier` or `tasks`. */
  lazy val gang: String = Core(_.jobGang(packed))

  /** With how many of its tasks it goes on. */
  lazy val leastTasks: Int = Core(_.jobLeastTasks(packed))

  /** Whether it goes on with fewer tasks than it asks for. */
  lazy val isElastic: Boolean = leastTasks < tasks
}

private[spark] object Job {

  /** A job under these settings (keys and values, in turn), with a fresh id. */
  def apply(name: String, ranks: Int, tasks: Int, useGpu: Boolean, settings: Array[String]): Job =
    new Job(Core(_.newJob(name, ranks, tasks, useGpu, settings)), tasks)
}
