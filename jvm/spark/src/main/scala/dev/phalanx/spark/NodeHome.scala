package dev.phalanx.spark

import java.io.{File, IOException}
import java.nio.file.{Files, Path}

import scala.io.Source
import scala.util.Using

/** The guard and the Python package of this jar, as files.
  *
  * HOME-1: unpacked once a JVM, into a folder of this user's below Spark's local directory, which goes with the
  * application. So executors need no Phalanx in their Python.
  */
final private[spark] class NodeHome private (val folder: Path) {
  val guard: String = folder.resolve("phalanx-guard").toString

  /** The folder that has the package `phalanx` in it. */
  val python: String = folder.resolve("python").toString
}

private[spark] object NodeHome {
  private var current: NodeHome = _

  /** Unpacks at the first call, and again where the folder has gone: with an application that this JVM had before. */
  def get(): NodeHome = synchronized {
    if (current == null || !Files.isExecutable(current.folder.resolve("phalanx-guard")))
      current = unpack(SparkInternals.localDir)
    current
  }

  /** Removes the folder; the next `get` unpacks again. */
  def remove(): Unit = synchronized {
    if (current != null) SparkInternals.delete(current.folder.toFile)
    current = null
  }

  private def unpack(parent: File): NodeHome =
    try {
      Files.createDirectories(parent.toPath)
      val folder = Files.createTempDirectory(parent.toPath, "phalanx-home-") // for this user only
      SparkInternals.deleteAtShutdown(folder.toFile)
      write(s"${NativeLibrary.folder}/phalanx-guard", folder.resolve("phalanx-guard"))
      folder.resolve("phalanx-guard").toFile.setExecutable(true)
      index.foreach(name => write(s"python/$name", folder.resolve("python").resolve(name)))
      new NodeHome(folder)
    } catch {
      case problem: IOException =>
        throw new TrainingException("start", s"Phalanx can't unpack its files below $parent: $problem", problem)
    }

  private def index: Seq[String] =
    Using.resource(stream("python/index"))(Source.fromInputStream(_, "UTF-8").getLines().filter(_.nonEmpty).toSeq)

  private def write(resource: String, file: Path): Unit = {
    Files.createDirectories(file.getParent)
    Using.resource(stream(resource))(Files.copy(_, file))
    ()
  }

  private def stream(resource: String) =
    Option(getClass.getClassLoader.getResourceAsStream(resource))
      .getOrElse(throw new IOException(s"the jar has no $resource"))
}
