package dev.phalanx.spark.ways

import org.apache.spark.TaskContext
import org.apache.spark.util.TaskCompletionListener

import dev.phalanx.spark.internal.SparkInternals

/** The tunnel of a node that is in a Python worker: its executor opens it when the task begins, since a worker knows
  * nothing of its executor.
  *
  *   - WAY-6 (for-python): a task whose Spark job names a job of Phalanx has a tunnel to that one's hub from its
  *     beginning to its end, and its Python worker reads where.
  */
private[spark] object TaskTunnel {

  /** A property of a Spark job: the job whose nodes are in its Python workers. `python/phalanx/stages/python.py` sets
    * it.
    */
  val JobProperty = "phalanx.tunnel.job"

  /** The property by which the worker of a partition knows where its tunnel is: `host:port`. */
  def addressProperty(partition: Int): String = s"phalanx.tunnel.address.$partition"

  /** Opens it, if the task is of such a job, and this executor has a way to the driver. */
  def openFor(task: TaskContext): Unit =
    for (job <- Option(task.getLocalProperty(JobProperty)); tunnel <- TunnelEntrance.to(job)) {
      task.addTaskCompletionListener(new TaskCompletionListener {
        override def onTaskCompletion(context: TaskContext): Unit = tunnel.close()
      })
      // Tasks of one stage may share their properties.
      SparkInternals.propertiesOf(task).setProperty(addressProperty(task.partitionId()), tunnel.address): Unit
    }
}
