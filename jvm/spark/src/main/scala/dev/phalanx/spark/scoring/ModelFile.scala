package dev.phalanx.spark.scoring

import java.io.{File, FileNotFoundException}
import java.nio.file.{Files, Path, StandardCopyOption}
import java.security.{DigestInputStream, MessageDigest}

import scala.collection.mutable
import scala.util.Using

import org.apache.hadoop.fs.{Path => HadoopPath}
import org.apache.spark.SparkContext
import org.apache.spark.broadcast.Broadcast

import dev.phalanx.spark.internal.{SparkInternals, TempFolder}

/** A model's file for all executors.
  *
  * @param key a hash of its content
  */
final private[spark] class ModelFile private (val key: String, val broadcast: Broadcast[_])

private[spark] object ModelFile {

  /** How many files of an application are at hand; an older one is sent again. */
  private val Most = 8
  private val folder = new TempFolder("phalanx-models-")
  // By application and key; the oldest is the first.
  private val files = mutable.LinkedHashMap.empty[(String, String), ModelFile]

  /** The file at a local path or at a URI that Hadoop can read. Throws `IOException` where it can't be read. */
  def of(sc: SparkContext, path: String): ModelFile = synchronized {
    val copy = Files.createTempFile(folder.path, "", "")
    val key =
      try copied(sc, path, copy)
      catch {
        case problem: Throwable =>
          Files.deleteIfExists(copy)
          throw problem
      }
    val at = (sc.applicationId, key)
    val known = files.remove(at)
    if (known.nonEmpty) Files.delete(copy)
    val file = known.getOrElse(new ModelFile(key, SparkInternals.broadcastFile(sc, copy.toString)))
    files.put(at, file)
    if (files.size > Most) files -= files.head._1
    file
  }

  /** Copies the file, so that whatever happens to it changes nothing; the hash of its content. */
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
    Using.resource(new DigestInputStream(from, digest))(Files.copy(_, to, StandardCopyOption.REPLACE_EXISTING))
    digest.digest().map(byte => f"$byte%02x").mkString
  }
}
