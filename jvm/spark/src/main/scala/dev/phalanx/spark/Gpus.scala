package dev.phalanx.spark

import scala.util.Try

import org.slf4j.Logger

/** Which GPUs a run gets, and over how many tasks its ranks are spread; the rules of `python/phalanx/gpus.py`.
  *
  * GPU-1: an address is whatever Spark's discovery gave: an index, a GPU's or a MIG instance's UUID. The tables in
  * `tests/contract/checks.json` are for both languages.
  */
private[spark] object Gpus {
  private val DriverAmount = "spark.driver.resource.gpu.amount"
  private val TaskAmount = "spark.task.resource.gpu.amount"
  val Visible = "CUDA_VISIBLE_DEVICES"

  /** How many of `numProcesses` local ranks there can be: no more than the driver has GPUs, with a warning. */
  def driverLimited(
      numProcesses: Int,
      conf: String => Option[String],
      resources: Set[String],
      log: Logger
  ): Int = {
    if (!resources.contains("gpu")) Checks.refuse("GPUs were unable to be found on the driver.")
    val available = conf(DriverAmount).flatMap(text => Try(text.trim.toInt).toOption).getOrElse(0)
    if (available == 0) Checks.refuse("GPU resources were not configured properly on the driver.")
    if (numProcesses > available)
      log.warn(
        "'num_processes' cannot be set to a value greater than the number of available GPUs on the driver, " +
          s"which is $available. 'num_processes' was reset to be equal to the number of available GPUs."
      )
    numProcesses.min(available)
  }

  /** Over how many tasks of the cluster `numProcesses` ranks are spread: one rank a task, or one a GPU. */
  def numTasks(numProcesses: Int, useGpu: Boolean, conf: String => Option[String]): Int =
    if (!useGpu) numProcesses
    else {
      val text = conf(TaskAmount).getOrElse("0")
      val amount = Try(text.trim.toDouble).getOrElse(0.0)
      if (amount > 0 && amount < 1)
        Checks.refuse(s"'$TaskAmount' is $text, but a rank needs a GPU of its own; set 1 or more.")
      val perTask = amount.toInt
      if (perTask < 1) Checks.refuse(s"'$TaskAmount' was unset, so gpu usage is unavailable.")
      if (numProcesses % perTask != 0)
        Checks.refuse(
          s"TorchDistributor 'num_processes' value ($numProcesses) must be a multiple of " +
            s"'$TaskAmount' ($perTask) value."
        )
      numProcesses / perTask
    }

  /** What `CUDA_VISIBLE_DEVICES` has to say for GPUs at these addresses in a process where it is `visible`.
    *
    * Where it is set, integer addresses count its entries, as CUDA does; every other address is taken as it is.
    */
  def devices(addresses: Seq[String], visible: Option[String]): Seq[String] = visible match {
    case None       => addresses
    case Some(text) =>
      val entries = text.split(',').iterator.map(_.trim).filter(_.nonEmpty).toVector
      addresses.map { address =>
        address.toIntOption match {
          case None                          => address
          case Some(n) if n < entries.length => entries(n)
          case Some(_)                       =>
            throw new IllegalArgumentException(
              s"Spark's GPU $address is not among the ${entries.length} of $Visible='$text'"
            )
        }
      }
  }
}
