package dev.phalanx.spark.node

import scala.util.control.NonFatal

import org.apache.spark.TaskKilledException
import org.slf4j.LoggerFactory

import dev.phalanx.spark.TrainingException

/** A node as a job of its own. What the node throws is its result, as text (empty if it throws nothing): Spark would
  * run a task again that throws, and the hub decides about that. Only a node that can't reach the driver throws: on
  * another executor it may.
  */
final private[spark] class SeatTask(task: NodeTask) extends (Iterator[Int] => String) with Serializable {

  override def apply(partition: Iterator[Int]): String =
    try {
      task(partition)
      ""
    } catch {
      case killed: TaskKilledException                                     => throw killed
      case unreached: TrainingException if unreached.kind == "unreachable" => throw unreached
      case NonFatal(problem)                                               =>
        LoggerFactory.getLogger("dev.phalanx").error("The node failed", problem)
        problem.toString
    }
}
