package dev.phalanx.spark.driver

import java.io.{File, FileNotFoundException, IOException}
import java.nio.file.Files

import scala.util.Using

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.apache.spark.SparkFiles

import dev.phalanx.spark.jni.Core

/** A training file as the driver finds it.
  *
  * @param path where it is, for the ranks to show; for a file in a remote file system only its name
  */
final private[spark] case class TrainFile(path: String, source: Array[Byte]) {
  def name: String = path.substring(path.lastIndexOf('/') + 1)
}

/** Finds a training file: a local one, else by its URI in a Hadoop file system, else among the files that Spark
  * shipped.
  */
private[spark] object TrainFile {
  private val Uri = "[A-Za-z][A-Za-z0-9+.-]+:.*".r

  /** Throws `FileNotFoundException` or `IOException` with a sentence on where it was looked for. */
  def find(
      path: String,
      hadoop: => Configuration,
      shipped: String => String = name => SparkFiles.get(name)
  ): TrainFile = {
    val local = new File(path).getAbsoluteFile
    path match {
      case Uri() if !local.exists => ofHadoop(path, hadoop)
      case _                      =>
        val found = if (local.exists) local else new File(shipped(path)).getAbsoluteFile
        Core(_.checkTrainFile(local.toString, found.isFile || local.exists, local.isDirectory, path))
        read(found)
    }
  }

  private def read(file: File): TrainFile =
    TrainFile(file.toPath.normalize.toString, Files.readAllBytes(file.toPath))

  private def ofHadoop(uri: String, hadoop: Configuration): TrainFile =
    try {
      val path = new Path(uri)
      val system = path.getFileSystem(hadoop)
      val source = Using.resource(system.open(path))(_.readAllBytes())
      TrainFile(if (system.getScheme == "file") path.toUri.getPath else path.getName, source)
    } catch {
      case problem: FileNotFoundException =>
        throw new FileNotFoundException(s"there is no training file $uri: ${problem.getMessage}")
      case problem @ (_: IOException | _: IllegalArgumentException | _: UnsupportedOperationException) =>
        throw new IOException(s"the training file $uri can't be read: $problem", problem)
    }
}
