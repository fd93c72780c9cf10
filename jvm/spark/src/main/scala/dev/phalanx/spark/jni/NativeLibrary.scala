package dev.phalanx.spark.jni

import java.io.IOException
import java.net.URL
import java.nio.file.{Files, Path}

import scala.util.Using

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.{ExecutableFolders, Tried, Version}

/** The native library of this JVM.
  *
  * JAR-13 (loaded-once): it is loaded once in a JVM, at the first use, from a private temporary file that is removed
  * at once. Where nothing may be executed in the folder for temporary files, one of Spark's takes its place.
  *
  * JAR-14 (same-version): a library of another version is refused.
  *
  * JAR-15 (says-why): a failure names operating system, architecture, C library and what was tried. Every later use
  * says the same.
  */
private[spark] object NativeLibrary {

  /** Operating system and architecture: `linux/x86_64`. */
  val platform: String = s"$os/$arch"

  /** Where the jar has its native files; it can have those of several platforms. */
  val folder: String = s"native/$platform"

  private lazy val loaded: Either[TrainingException, Native] =
    try Right(load(getClass.getClassLoader.getResource(s"$folder/libphalanx_jni.so"), Version.phalanx))
    catch { case problem: TrainingException => Left(problem) }

  /** The library.
    *
    * Throws [[TrainingException]] of kind `start` where it can't be loaded.
    */
  def native: Native = loaded.fold(
    first => throw new TrainingException(first.kind, first.message, first.getCause),
    identity
  )

  /** Loads the library that `resource` holds, by way of the first of these folders in which that works; what `native`
    * does once.
    */
  def load(resource: URL, version: String, folders: Seq[Path] = ExecutableFolders.all(Nil)): Native = {
    if (resource == null)
      throw failure(s"the jar has no $folder/libphalanx_jni.so$whereItIs", null)
    Tried.first(folders)(loadBy(_, resource, version)) match {
      case Right(native)  => native
      case Left(problems) =>
        throw failure(s"tried $resource by way of ${problems.map(_._1).mkString("; ")}", problems.head._2)
    }
  }

  /** The library, or how it went and what was thrown. */
  private def loadBy(folder: Path, resource: URL, version: String): Either[(String, Throwable), Native] =
    try {
      val private0700 = Files.createTempDirectory(folder, "phalanx-native-")
      val file = private0700.resolve("libphalanx_jni.so")
      try {
        Using.resource(resource.openStream())(Files.copy(_, file))
        System.load(file.toString)
        Right(checked(new Native, resource, version))
      } catch {
        case problem: LinkageError => Left((s"$file: ${problem.getMessage}", problem))
      } finally {
        Files.deleteIfExists(file)
        Files.delete(private0700)
      }
    } catch {
      case problem: IOException => Left((s"$folder: $problem", problem))
    }

  private def checked(native: Native, resource: URL, version: String): Native = {
    val found = native.version()
    if (found != version)
      throw failure(s"$resource has version $found, but the jar has version $version", null)
    native
  }

  private def failure(why: String, cause: Throwable): TrainingException =
    new TrainingException(
      "start",
      s"Phalanx's native library can't be loaded on $platform with ${LibcVersion.describe()}: $why",
      cause
    )

  /** What to do about a jar that was taken out of a wheel by its path: it has native files for no platform. */
  private def whereItIs: String = {
    val loader = getClass.getClassLoader
    val wheels =
      Seq("x86_64", "aarch64").forall(arch => loader.getResource(s"native/linux/$arch/phalanx-guard") == null)
    if (wheels) "; the jars in a wheel have no native files: use the jar that phalanx.jar_path() makes" else ""
  }

  private def os: String = System.getProperty("os.name").toLowerCase

  private def arch: String = System.getProperty("os.arch") match {
    case "amd64" => "x86_64"
    case other   => other
  }
}
