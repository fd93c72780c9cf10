package dev.phalanx.spark

/** GPUs that a run of this JVM has to itself until `close`.
  *
  * GPU-2: runs on the driver that are under way at the same time have no GPU in common.
  */
final private[spark] class GpuLease private (val gpus: Seq[String]) extends AutoCloseable {
  override def close(): Unit = GpuLease.release(this)
}

private[spark] object GpuLease {
  private var leases = Set.empty[GpuLease]

  /** Takes the first `count` of `gpus` that no other run of this JVM has. */
  def take(gpus: Seq[String], count: Int): GpuLease = synchronized {
    val inUse = leases.flatMap(_.gpus)
    val free = gpus.distinct.filterNot(inUse)
    if (free.length < count)
      Checks.refuse(
        s"the run needs $count GPUs; the driver has ${gpus.length}, of which ${gpus.toSet.intersect(inUse).size} " +
          "are in use by other runs of this process"
      )
    val lease = new GpuLease(free.take(count))
    leases += lease
    lease
  }

  private def release(lease: GpuLease): Unit = synchronized(leases -= lease)
}
