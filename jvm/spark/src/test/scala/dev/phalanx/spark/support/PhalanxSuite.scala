package dev.phalanx.spark.support

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, IOException, ObjectInputStream, ObjectOutputStream}
import java.nio.charset.StandardCharsets.ISO_8859_1
import java.nio.file.{Files, Path, Paths}

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.scalatest.Outcome
import org.scalatest.concurrent.{Eventually, Signaler, ThreadSignaler, TimeLimits}
import org.scalatest.funsuite.AnyFunSuite
import org.scalatest.time.{Millis, Seconds, Span}

import dev.phalanx.spark.internal.{Json, SparkInternals}

/** Each test has a deadline, and leaves no process of ranks behind. */
abstract class PhalanxSuite extends AnyFunSuite with TimeLimits with Eventually {
  implicit val signaler: Signaler = ThreadSignaler
  implicit override val patienceConfig: PatienceConfig =
    PatienceConfig(timeout = Span(60, Seconds), interval = Span(20, Millis))

  protected def deadlineSeconds: Int = 120

  override def withFixture(test: NoArgTest): Outcome = {
    val outcome = failAfter(Span(deadlineSeconds.toLong, Seconds))(super.withFixture(test))
    eventually(assert(PhalanxSuite.guards.isEmpty, "a guard of ranks is left"))
    outcome
  }

  /** Runs `body` with a folder that is gone afterwards. */
  protected def withFolder[A](body: Path => A): A = {
    val folder = Files.createTempDirectory("phalanx-test-")
    try body(folder)
    finally SparkInternals.delete(folder.toFile)
  }

  /** A Python file of this text in `folder`. */
  protected def python(folder: Path, name: String, text: String): String =
    Files.writeString(folder.resolve(name), text.stripMargin).toString
}

object PhalanxSuite {
  val root: Path = Paths.get(sys.props.getOrElse("phalanx.root", "../..")).toAbsolutePath.normalize
  val python: String = root.resolve(".venv/bin/python").toString

  def contract(name: String): JsonNode = Json.read(Files.readAllBytes(root.resolve(s"tests/contract/$name")))

  def rows(node: JsonNode): Seq[JsonNode] = node.elements().asScala.toVector

  def text(node: JsonNode, name: String): Option[String] =
    Option(node.get(name)).filterNot(_.isNull).map(_.asText())

  def conf(node: JsonNode): String => Option[String] = key => text(node, key)

  /** `value` as it is after a way from one JVM to another. */
  def travelled[A <: AnyRef](value: A): A = {
    val bytes = new ByteArrayOutputStream
    new ObjectOutputStream(bytes).writeObject(value)
    new ObjectInputStream(new ByteArrayInputStream(bytes.toByteArray)).readObject().asInstanceOf[A]
  }

  /** The guards of ranks that this JVM and its executors have started; not those of warm pools. */
  def guards: Seq[ProcessHandle] =
    ProcessHandle.current.descendants.iterator.asScala.toVector.filter { process =>
      // Warm ranks have the pool's command line, too; their guard is the pool's child.
      val hasPool = process.children.iterator.asScala.exists(read(_, "cmdline").contains("phalanx.warm_pool"))
      val isPools = process.parent.map(parent => read(parent, "comm").trim == "phalanx-pool").orElse(false)
      read(process, "comm").trim == "phalanx-guard" && (!hasPool || isPools)
    }

  /** A file of a process in /proc; empty once it has ended. */
  private def read(process: ProcessHandle, file: String): String =
    try Files.readString(Path.of(s"/proc/${process.pid}/$file"), ISO_8859_1)
    catch { case _: IOException => "" }
}
