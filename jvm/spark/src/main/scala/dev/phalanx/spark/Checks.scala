package dev.phalanx.spark

import scala.util.Try

import org.slf4j.Logger

/** What can be known to be wrong before a stage starts, said in one sentence; the rules of
  * `python/phalanx/checks.py`.
  *
  * CHECK-1: a run that can't get its slots fails here, by a deadline, and not in Spark's silent retries. CHECK-2:
  * Python and Scala say the same; `tests/contract/checks.json` has the cases.
  */
private[spark] object Checks {
  val SslOverride = "pytorch.spark.distributor.ignoreSsl"
  private val SlotsTimeout = "spark.phalanx.slots.timeout"
  private val LocalCluster = """local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]""".r
  private val PollMillis = 100L

  /** Where Python raises `RuntimeError`. */
  def refuse(sentence: String): Nothing = throw new TrainingException("invalid", sentence)

  def numProcesses(value: Int): Int =
    if (value > 0) value
    else throw new IllegalArgumentException("num_processes has to be a positive integer")

  /** Refuses where Spark would refuse the barrier stage because of dynamic allocation. */
  def dynamicAllocation(conf: String => Option[String]): Unit =
    if (isTrue(conf("spark.dynamicAllocation.enabled")) && !isLocal(conf("spark.master").getOrElse("")))
      refuse(
        "distributed training needs all its executors at once, and Spark refuses that under dynamic " +
          "allocation; set spark.dynamicAllocation.enabled to false and fix the number of executors"
      )

  /** Refuses a cluster with TLS, unless the setting `SslOverride` is true; then it warns. */
  def encryption(conf: String => Option[String], log: Logger): Unit =
    if (isTrue(conf("spark.ssl.enabled"))) {
      if (!isTrue(conf(SslOverride)))
        refuse(
          "This cluster has TLS encryption enabled; however, TorchDistributor does not encrypt what the ranks send " +
            s"each other: gradients, parameters, possibly data. Set '$SslOverride' to 'true' to run anyway."
        )
      log.warn(
        s"This cluster has TLS encryption enabled; '$SslOverride' is 'true', so TorchDistributor runs all the same, " +
          "and gradients, parameters and possibly data travel unencrypted."
      )
    }

  /** Waits until the cluster has `numTasks` task slots, at most so long; at once where the number can't get there. */
  def slots(
      master: String,
      conf: String => Option[String],
      numTasks: Int,
      timeoutMillis: Long,
      log: Logger,
      slotsNow: () => Int
  ): Unit = {
    val limit = mostSlots(master, conf)
    val deadline = System.nanoTime + timeoutMillis * 1000000
    var said = false
    var there = slotsNow()
    while (there < numTasks) {
      (if (isLocal(master)) Some(there) else limit).filter(_ < numTasks).foreach { most =>
        refuse(
          s"the run needs $numTasks task slots at once, but with master $master there are " +
            s"never more than $most; lower num_processes or give the application more cores"
        )
      }
      if (System.nanoTime >= deadline)
        refuse(
          s"the run needs $numTasks task slots at once, but after ${seconds(timeoutMillis)} s the registered " +
            s"executors have $there; lower num_processes, add executors, or raise $SlotsTimeout"
        )
      if (!said) {
        log.info(s"Waiting for executors: $there of $numTasks task slots are there")
        said = true
      }
      Thread.sleep(PollMillis)
      there = slotsNow()
    }
  }

  /** The most task slots that the application can ever have; `None` where that isn't known. */
  def mostSlots(master: String, conf: String => Option[String]): Option[Int] = {
    def number(key: String) = conf(key).flatMap(text => Try(text.trim.toInt).toOption)
    val perTask = number("spark.task.cpus").getOrElse(1)
    lazy val executors = number("spark.executor.instances")
    lazy val coresInAll = number("spark.cores.max")
    master match {
      case LocalCluster(workers, coresText) =>
        val cores = coresText.toInt
        val each = number("spark.executor.cores").getOrElse(cores)
        Some(if (each <= cores) workers.toInt * (cores / each) * (each / perTask) else 0)
      case _ if (master.startsWith("yarn") || master.startsWith("k8s://")) && executors.isDefined =>
        executors.map(_ * (number("spark.executor.cores").getOrElse(1) / perTask))
      case _ if master.startsWith("spark://") => coresInAll.map(_ / perTask) // it doesn't heed the instances
      case _                                  => None
    }
  }

  /** Whether the driver is the only executor. */
  def isLocal(master: String): Boolean = master == "local" || master.startsWith("local[")

  private def isTrue(value: Option[String]): Boolean = value.exists(_.trim.equalsIgnoreCase("true"))

  private def seconds(millis: Long): String =
    BigDecimal(millis, 3).bigDecimal.stripTrailingZeros.toPlainString
}
