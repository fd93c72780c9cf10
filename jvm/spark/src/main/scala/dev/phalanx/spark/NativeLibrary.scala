package dev.phalanx.spark

import java.io.IOException
import java.net.URL
import java.nio.file.{Files, Path, StandardCopyOption}

/** The native library of this JVM.
  *
  * LIB-1: it is loaded once a JVM, at the first use, from a private temporary file that is removed at once. LIB-2: a
  * library of another version is refused. LIB-3: a failure names operating system, architecture, C library and what
  * was tried, and every later use says the same.
  */
private[spark] object NativeLibrary {

  /** Operating system and architecture: `linux/x86_64`. */
  val platform: String = s"$os/$arch"

  /** Where the jar has its native files. */
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

  /** Loads the library that `resource` holds; what `native` does once. */
  def load(resource: URL, version: String): Native = {
    if (resource == null)
      throw failure(s"the jar has no $folder/libphalanx_jni.so", null)
    try {
      val private0700 = Files.createTempDirectory("phalanx-native-")
      val file = private0700.resolve("libphalanx_jni.so")
      try {
        val bytes = resource.openStream()
        try Files.copy(bytes, file, StandardCopyOption.REPLACE_EXISTING)
        finally bytes.close()
        loadFile(file, resource, version)
      } finally {
        Files.deleteIfExists(file)
        Files.delete(private0700)
      }
    } catch {
      case problem: IOException => throw failure(s"$resource can't be unpacked: $problem", problem)
    }
  }

  private def loadFile(file: Path, resource: URL, version: String): Native =
    try {
      System.load(file.toString)
      val native = new Native
      val found = native.version()
      if (found != version)
        throw failure(s"$resource is of version $found and the jar of version $version", null)
      native
    } catch {
      case problem: LinkageError =>
        throw failure(s"tried $resource by way of $file: ${problem.getMessage}", problem)
    }

  private def failure(why: String, cause: Throwable): TrainingException =
    new TrainingException(
      "start",
      s"Phalanx's native library can't be loaded on $platform with ${CLibrary.describe()}: $why",
      cause
    )

  private def os: String = System.getProperty("os.name").toLowerCase

  private def arch: String = System.getProperty("os.arch") match {
    case "amd64" => "x86_64"
    case other   => other
  }
}
