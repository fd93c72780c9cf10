package dev.phalanx.spark

/** One node of a job, run in this JVM: by a barrier task, or by a thread of the driver in local mode. */
final private[spark] case class Node(
    job: Array[Byte],
    payload: Array[Byte],
    hub: String,
    token: Array[Byte],
    partition: Int,
    attempt: Int,
    host: String,
    gpus: Seq[String],
    program: RankProgram,
    env: Map[String, String],
    pyFiles: Seq[String]
) {

  /** Runs the node to its end: its ranks are gone when this returns or throws.
    *
    * @param interrupted why it has to end; null while it may go on
    * @param gather Spark's `allGather`
    * @return a report for the hub if the hub could not be told; empty else
    */
  def run(interrupted: () => String, gather: String => Array[String]): Array[Byte] = LiveNodes.run {
    val home = NodeHome.get()
    val metrics = NodeMetrics.current
    try
      Core(native =>
        native.runNode(
          job,
          payload,
          hub,
          token,
          partition,
          attempt,
          host,
          gpus.toArray,
          program.command(home),
          program.pool(home),
          RankEnvironment.variables(env, pyFiles),
          SparkInternals.localDir.getAbsolutePath,
          home.guard,
          new Node.Host(native, metrics, interrupted, gather)
        )
      )
    finally metrics.nodeEnded()
  }
}

private[spark] object Node {

  final private class Host(
      native: Native,
      metrics: NodeMetrics,
      why: () => String,
      gather: String => Array[String]
  ) extends NodeHost {

    override def interrupted(): String = {
      CoreLog.handOver(native)
      val reason = why()
      if (reason != null) reason else LiveNodes.endingBecause
    }

    override def allGather(text: String): Array[String] = gather(text)
    override def joined(micros: Long): Unit = metrics.joined(micros)
    override def rankStarted(micros: Long): Unit = metrics.rankStarted(micros)
    override def rankRestarted(): Unit = metrics.rankRestarted()
    override def rankEnded(failed: Boolean): Unit = metrics.rankEnded(failed)
    override def output(lines: Long, bytes: Long): Unit = metrics.output(lines, bytes)
  }
}
