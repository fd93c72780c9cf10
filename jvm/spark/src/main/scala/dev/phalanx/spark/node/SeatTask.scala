package dev.phalanx.spark.node

import scala.util.control.NonFatal

import org.apache.spark.TaskKilledException
import org.slf4j.LoggerFactory

/** A node as a job of its own. What the node throws is its result, as text (empty if it throws nothing): Spark would
  * run a task again that throws, and the hub decides about that.
  */
final private[spark] class SeatTask(task: NodeTask) extends (Iterator[Int] => String) with Serializable {

  override def apply(partition: Iterator[Int]): String =
    try {
      task(partition)
      ""
    } catch {
      case killed: TaskKilledException => throw killed
      case NonFatal(problem)           =>
        LoggerFactory.getLogger("dev.phalanx").error("The node failed", problem)
        problem.toString
    }
}
