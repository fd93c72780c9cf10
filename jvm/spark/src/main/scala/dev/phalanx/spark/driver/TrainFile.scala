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
  * @param main of a folder that is a program, as for Python: the name of its main file, whose source this is
  */
final private[spark] case class TrainFile(path: String, source: Array[Byte], main: String = "") {
  def name: String = path.substring(path.lastIndexOf('/') + 1)
}

/** Finds a training file: a local one, else by its URI in a Hadoop file system, else among the files that Spark
  * shipped.
  */
private[spark] object TrainFile {
  private val Uri = "[A-Za-z][A-Za-z0-9+.-]+:.*".r
  private val Mains = Seq("__main__.py", "__main__.pyc")

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
        val other = if (runs(local)) None else Some(new File(shipped(path)).getAbsoluteFile)
        val found = other.filter(file => runs(file) || !local.exists).getOrElse(local)
        val main = mainOf(found)
        val isFolder = found.isDirectory && main.isEmpty
        Core(_.checkTrainFile(local.toString, found.exists, isFolder, path))
        read(found, main)
    }
  }

  private def mainOf(folder: File): String =
    Mains.find(name => new File(folder, name).isFile).getOrElse("")

  private def runs(file: File): Boolean = file.isFile || mainOf(file).nonEmpty

  private def read(file: File, main: String): TrainFile =
    TrainFile(file.toPath.normalize.toString, Files.readAllBytes(file.toPath.resolve(main)), main)

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
