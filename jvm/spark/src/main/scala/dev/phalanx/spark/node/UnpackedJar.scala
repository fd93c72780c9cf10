package dev.phalanx.spark.node

import java.io.IOException
import java.nio.file.{Files, Path}

import scala.io.Source
import scala.util.Using

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.{ExecutableFolders, SparkInternals, Tried}
import dev.phalanx.spark.jni.NativeLibrary

/** The guard and the Python package of this jar, as files.
  *
  * JAR-26 (unpacked-once): they are unpacked once in a JVM, into a folder of this user's below Spark's local
  * directory, which is removed with the application. Where nothing may be executed there, the folder is below the one
  * for temporary files. So executors need no Phalanx in their Python.
  */
final private[spark] class UnpackedJar private (val folder: Path) {
  val guard: String = folder.resolve("phalanx-guard").toString

  /** The folder that has the package `phalanx` in it. */
  val python: String = folder.resolve("python").toString
}

private[spark] object UnpackedJar {
  private var current: UnpackedJar = _

  /** Unpacks at the first call, and again where the folder has gone: with an application that this JVM had before. */
  def get(): UnpackedJar = synchronized {
    if (current == null || !Files.isExecutable(current.folder.resolve("phalanx-guard")))
      current = unpack(ExecutableFolders.all(Seq(SparkInternals.localDir.toPath)))
    current
  }

  /** Removes the folder; the next `get` unpacks again. */
  def remove(): Unit = synchronized {
    if (current != null) SparkInternals.delete(current.folder.toFile)
    current = null
  }

  /** Unpacks below the first of these folders in which the guard can be executed. */
  def unpack(parents: Seq[Path]): UnpackedJar =
    Tried.first(parents)(unpackBelow) match {
      case Right(jar)     => jar
      case Left(problems) =>
        // Paths are long, and Spark's words are cut: each reason stands once, before its folders.
        val why = problems.map(_._2).distinct.map { reason =>
          s"$reason: ${problems.collect { case (folder, `reason`) => folder }.mkString(", ")}"
        }
        throw new TrainingException("start", s"Phalanx can't unpack its files: ${why.mkString("; ")}")
    }

  /** The jar's files below this folder; else the folder and why not there. */
  private def unpackBelow(parent: Path): Either[(Path, String), UnpackedJar] =
    try {
      Files.createDirectories(parent)
      val folder = Files.createTempDirectory(parent, "phalanx-home-") // for this user only
      SparkInternals.deleteAtShutdown(folder.toFile)
      val guard = folder.resolve("phalanx-guard")
      write(s"${NativeLibrary.folder}/phalanx-guard", guard)
      guard.toFile.setExecutable(true)
      if (!Files.isExecutable(guard)) {
        SparkInternals.delete(folder.toFile)
        Left(parent -> "nothing may be executed there (noexec)")
      } else {
        index.foreach(name => write(s"python/$name", folder.resolve("python").resolve(name)))
        write(s"${NativeLibrary.folder}/lib_native.so", folder.resolve("python/phalanx/_native.abi3.so"))
        Right(new UnpackedJar(folder))
      }
    } catch {
      case problem: IOException => Left(parent -> problem.toString)
    }

  private def index: Seq[String] =
    Using.resource(stream("python/index"))(Source.fromInputStream(_, "UTF-8").getLines().filter(_.nonEmpty).toVector)

  private def write(resource: String, file: Path): Unit = {
    Files.createDirectories(file.getParent)
    Using.resource(stream(resource))(Files.copy(_, file))
    ()
  }

  private def stream(resource: String) =
    Option(getClass.getClassLoader.getResourceAsStream(resource))
      .getOrElse(throw new IOException(s"the jar has no $resource"))
}
