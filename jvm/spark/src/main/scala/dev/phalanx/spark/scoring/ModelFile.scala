package dev.phalanx.spark.scoring

import java.io.{File, FileNotFoundException}
import java.nio.file.{Files, Path}
import java.security.{DigestInputStream, MessageDigest}

import scala.collection.mutable
import scala.util.Using

import org.apache.hadoop.fs.{Path => HadoopPath}
import org.apache.spark.SparkContext
import org.apache.spark.broadcast.Broadcast

import dev.phalanx.spark.internal.{OnceUnused, SparkInternals}

/** A model's file for all executors.
  *
  * JAR-35 (own-copy): they have a copy of it, so that whatever happens to the file changes nothing. The copy goes
  * when no query has it any more, or with the JVM.
  *
  * @param key a hash of its content
  */
final private[spark] class ModelFile private (val key: String, val broadcast: Broadcast[_])

private[spark] object ModelFile {

  /** How many files of an application are at hand; an older one is sent again. */
  private val Most = 8
  // By application and key; the oldest is the first.
  private val files = mutable.LinkedHashMap.empty[(String, String), ModelFile]

  /** The file at a local path or at a URI that Hadoop can read. Throws `IOException` where it can't be read. */
  def of(sc: SparkContext, path: String): ModelFile = synchronized {
    val folder = Files.createTempDirectory(SparkInternals.localDir.toPath, "phalanx-model-").toFile
    SparkInternals.deleteAtShutdown(folder)
    val copy = folder.toPath.resolve("model")
    val key =
      try copied(sc, path, copy)
      catch {
        case problem: Throwable =>
          SparkInternals.delete(folder)
          throw problem
      }
    val at = (sc.applicationId, key)
    val file = files.remove(at) match {
      case Some(known) =>
        SparkInternals.delete(folder)
        known
      case None =>
        val broadcast = SparkInternals.broadcastFile(sc, copy.toString)
        OnceUnused(broadcast)(SparkInternals.delete(folder))
        new ModelFile(key, broadcast)
    }
    files.put(at, file)
    if (files.size > Most) files -= files.head._1
    file
  }

  /** Copies the file; the hash of its content. */
  private def copied(sc: SparkContext, path: String, to: Path): String = {
    val digest = MessageDigest.getInstance("SHA-256")
    val local = new File(path)
    if (!local.isFile && !path.contains(":")) throw new FileNotFoundException(s"there is no file $path")
    val from =
      if (local.isFile) Files.newInputStream(local.toPath)
      else {
        val uri = new HadoopPath(path)
        uri.getFileSystem(sc.hadoopConfiguration).open(uri)
      }
    Using.resource(new DigestInputStream(from, digest))(Files.copy(_, to))
    digest.digest().map(byte => f"$byte%02x").mkString
  }
}
