package dev.phalanx.spark.driver

import org.slf4j.Logger

import dev.phalanx.spark.jni.Core

/** The checks before a run starts: the Rust core decides from what Spark says, and throws what is wrong.
  *
  * As JOB-15 says, a run that can't get its slots fails here, by a deadline, and not in Spark's silent retries. As
  * JOB-16 says, every language refuses the same in the same words.
  */
private[spark] object Preflight {

  /** How many ranks there will be, over how many tasks. */
  final case class Plan(ranks: Int, tasks: Int)

  def plan(
      numProcesses: Int,
      localMode: Boolean,
      useGpu: Boolean,
      driverHasGpus: Boolean,
      conf: String => Option[String],
      log: Logger
  ): Plan = {
    val plan = Core(native => native.plan(numProcesses, localMode, useGpu, driverHasGpus, asked(conf)))
    plan.drop(2).foreach(log.warn)
    Plan(plan(0).toInt, plan(1).toInt)
  }

  /** Throws where a distributed run can't start on this cluster. */
  def mayStart(conf: String => Option[String], log: Logger): Unit =
    Option(Core(_.mayStart(asked(conf)))).foreach(log.warn)

  /** What the tasks of a run take; none where that is what the application's take. Throws where that can't be had. */
  def profile(
      useGpu: Boolean,
      localMode: Boolean,
      spark: String,
      conf: String => Option[String]
  ): Option[RunProfile] =
    Some(Core(_.profile(useGpu, localMode, spark, asked(conf))).toSeq).filter(_.nonEmpty).map(RunProfile(_))

  /** How many cores an executor has; 0 where it has all of whatever host it is on. */
  def executorCores(conf: String => Option[String]): Int = Core(_.executorCores(asked(conf)))

  /** Waits until the cluster has the slots of a run, at most so long; throws where they don't come. */
  def awaitSlots(
      tasks: Int,
      master: String,
      conf: String => Option[String],
      profile: Option[RunProfile],
      timeoutMillis: Long,
      log: Logger,
      slotsNow: () => Int
  ): Unit = {
    val set = asked(conf)
    val taken = profile.fold(Array.empty[String])(_.taken.toArray)
    val began = System.nanoTime
    Iterator
      .from(0)
      .map(n => Core(_.lookForSlots(tasks, master, set, taken, timeoutMillis, slotsNow(), millisSince(began), n)))
      .takeWhile(_ != null)
      .foreach { wait =>
        wait.drop(1).foreach(log.info)
        Thread.sleep(wait(0).toLong)
      }
  }

  /** The same before a stage is submitted again: until the time-out, or until the run is given up. */
  def awaitSlotsAgain(tasks: Int, timeoutMillis: Long, slotsNow: () => Int, givenUp: () => Boolean): Unit = {
    val began = System.nanoTime
    Iterator
      .continually(Core(_.lookBeforeRestart(tasks, slotsNow(), millisSince(began), timeoutMillis)))
      .takeWhile(pause => pause > 0 && !givenUp())
      .foreach(pause => Thread.sleep(pause))
  }

  private def millisSince(began: Long): Long = (System.nanoTime - began) / 1000000

  /** What the core asks of Spark's configuration: keys and values, in turn. */
  private def asked(conf: String => Option[String]): Array[String] =
    Core(_.preflightKeys()).flatMap(key => conf(key).toSeq.flatMap(Seq(key, _)))
}
