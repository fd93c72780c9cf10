package dev.phalanx.spark.feeding

import org.apache.spark.TaskContext

import dev.phalanx.spark.internal.{HostName, SparkInternals}
import dev.phalanx.spark.node.{Node, NodeTask}

/** One task of a round of carriers: it serves the blocks of its host, if that is wanted, to the ranks of a run that
  * has no node there. It is what `feeding/blocks/carrier_task.py` does in a Python worker.
  *
  * JAR-21 holds: a task that Spark kills ends by `TaskKilledException`.
  *
  * @param spec what the hub tells every node
  * @param first the number of the first carrier of this round
  * @param wanted the names of hosts
  */
final private[spark] class CarrierTask(spec: Array[Byte], first: Int, wanted: Set[String])
    extends (Iterator[Int] => Unit)
    with Serializable {

  override def apply(rows: Iterator[Int]): Unit = {
    val context = TaskContext.get()
    if (wanted(HostName.current))
      try {
        Node.carry(spec, first + context.partitionId(), wanted.toSeq, () => NodeTask.interruption(context))
        ()
      } catch {
        case problem: Throwable =>
          SparkInternals.throwIfKilled(context)
          throw problem
      }
    else Thread.sleep(CarrierTask.HoldMillis)
  }
}

private[spark] object CarrierTask {

  /** A task that isn't wanted keeps its slot so long, while Spark gives the other tasks of the round other slots. */
  private val HoldMillis = 300L
}
