package dev.phalanx.spark.node

import java.util.concurrent.{FutureTask, TimeUnit, TimeoutException}

import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path

import dev.phalanx.spark.internal.SparkInternals

/** A folder in a file system that Hadoop knows, by its URI. */
private[spark] object HadoopFolder {
  private val CopySeconds = 25L // as for folders of the machine: rust/job/src/node/output/log_directory.rs

  /** Copies files of this machine there; why it couldn't. In a thread of its own, since a remote system may hang. */
  def copy(folder: String, files: Seq[String], seconds: Long = CopySeconds): Option[String] = {
    val copying = new FutureTask[Option[String]](() => copyNow(folder, files))
    val thread = new Thread(copying, "phalanx-log-copy")
    thread.setDaemon(true)
    thread.start()
    try copying.get(seconds, TimeUnit.SECONDS)
    catch {
      case _: TimeoutException =>
        copying.cancel(true)
        Some(s"it takes longer than $seconds s")
      case _: InterruptedException =>
        copying.cancel(true)
        Thread.currentThread.interrupt()
        Some("the task was interrupted")
    }
  }

  private def copyNow(folder: String, files: Seq[String]): Option[String] =
    try {
      val target = new Path(folder)
      val system = target.getFileSystem(SparkInternals.hadoopConfiguration)
      system.mkdirs(target)
      files.foreach(file => system.copyFromLocalFile(false, true, new Path(s"file://$file"), target))
      None
    } catch { case NonFatal(problem) => Some(problem.toString) }
}
