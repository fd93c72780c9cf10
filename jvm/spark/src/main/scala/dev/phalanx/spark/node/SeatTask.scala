package dev.phalanx.spark.node

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.control.NonFatal

import org.apache.spark.TaskKilledException
import org.slf4j.LoggerFactory

import dev.phalanx.spark.TrainingException

/** A node as a job of its own. What the node throws is its result, as text (empty if it throws nothing): Spark would
  * run a task again that throws, and the hub decides about that. Only a node throws that can't reach the driver, or
  * was told to end though the run goes on: another executor may take its place.
  */
final private[spark] class SeatTask(task: NodeTask) extends (Iterator[Int] => String) with Serializable {

  import SeatTask.Again

  override def apply(partition: Iterator[Int]): String =
    try {
      task(partition)
      ""
    } catch {
      case killed: TaskKilledException                          => throw killed
      case gone: TrainingException if Again.contains(gone.kind) => throw gone
      case NonFatal(problem)                                    =>
        LoggerFactory.getLogger("dev.phalanx").error("The node failed", problem)
        problem.toString
    }
}

/** A node in a Python worker as a job of its own: its words are the partition. */
private[spark] object PythonSeatTask extends (Iterator[Array[Byte]] => String) with Serializable {
  override def apply(words: Iterator[Array[Byte]]): String = words.map(new String(_, UTF_8)).mkString
}

private object SeatTask {

  /** Kinds of what a node throws where Spark is to start it again. */
  private val Again = Set("unreachable", "cancelled")
}
