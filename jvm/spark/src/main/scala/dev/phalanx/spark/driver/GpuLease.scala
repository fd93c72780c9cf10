package dev.phalanx.spark.driver

import dev.phalanx.spark.jni.Core

/** GPUs of the driver that a run of this JVM has to itself until `close`. The Rust core knows which run has which.
  *
  * As JOB-18 says, runs on the driver that are under way at the same time have no GPU in common.
  */
final private[spark] class GpuLease private (id: Long, val gpus: Seq[String]) extends AutoCloseable {
  override def close(): Unit = Core(_.releaseGpus(id))
}

private[spark] object GpuLease {

  /** Takes a GPU for each rank that runs on the driver; none where no rank there needs one. */
  def take(
      ranks: Int,
      useGpu: Boolean,
      localMode: Boolean,
      master: String,
      addresses: Seq[String],
      visible: Option[String] = sys.env.get("CUDA_VISIBLE_DEVICES")
  ): GpuLease = {
    val lease = Core(_.leaseGpus(ranks, useGpu, localMode, master, addresses.toArray, visible.orNull))
    new GpuLease(lease(0).toLong, lease.toSeq.drop(1))
  }
}
