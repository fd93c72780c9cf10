package dev.phalanx.spark.driver

import org.apache.spark.SparkContext
import org.apache.spark.rdd.RDD
import org.apache.spark.resource.{ExecutorResourceRequests, ResourceProfileBuilder, TaskResourceRequests}

import dev.phalanx.spark.internal.SparkInternals

/** Spark's resource profile for a run whose tasks take something else than those of the application.
  *
  * As REQUEST-7, runs that want the same have the same profile: Spark keeps each for ever, and its executors serve no
  * other.
  *
  * @param taken what it takes, as the core tells it (`Native.profile`)
  */
final private[spark] case class RunProfile(taken: Seq[String]) {

  /** Spark's number of it, which it is told. */
  def in(sc: SparkContext): Int = {
    val tasks = new TaskResourceRequests().cpus(number(0))
    if (number(1) > 0) tasks.resource("gpu", number(1).toDouble): Unit
    val builder = new ResourceProfileBuilder().require(tasks)
    taken.drop(2) match {
      case Seq(cores, gpus, overheadMib, script, vendor) =>
        val executors = new ExecutorResourceRequests().cores(cores.toInt)
        if (gpus != "0") executors.resource("gpu", gpus.toLong, script, vendor): Unit
        if (overheadMib != "0") executors.memoryOverhead(s"${overheadMib}m"): Unit
        builder.require(executors): Unit
      case _ =>
    }
    SparkInternals.knownProfile(sc, builder.build())
  }

  private def number(at: Int): Int = taken(at).toInt
}

private[spark] object RunProfile {

  /** That of the application's own tasks. */
  val OfApplication = 0

  /** A row for each task of a stage with this profile. */
  def rows(sc: SparkContext, tasks: Int, profile: Int): RDD[Int] = {
    val rows = sc.parallelize(0 until tasks, tasks)
    if (profile == OfApplication) rows else rows.withResources(SparkInternals.profile(sc, profile))
  }
}
