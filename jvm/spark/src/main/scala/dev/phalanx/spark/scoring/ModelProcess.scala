package dev.phalanx.spark.scoring

import java.io.File
import java.nio.ByteBuffer
import java.nio.channels.{FileChannel, ReadableByteChannel, WritableByteChannel}
import java.nio.file.StandardOpenOption.{READ, WRITE}
import java.nio.file.attribute.PosixFilePermissions
import java.nio.file.{Files, Path, Paths}

import org.apache.spark.TaskContext

import dev.phalanx.spark.internal.{Json, SparkInternals}
import dev.phalanx.spark.jni.{Core, ModelCallbacks}
import dev.phalanx.spark.node.{RankEnvironment, UnpackedJar}

/** A task's connection to the process of its model, which is started with the first batch, if it isn't there. There
  * are at most two batches without an answer; `slot` says which. No answer is waited for once `isOver`.
  */
final private[scoring] class ModelProcess(
    plan: PredictPlan,
    packed: PackedModel,
    context: TaskContext,
    isOver: () => Boolean
) extends AutoCloseable {

  private val handle = {
    val home = UnpackedJar.get().folder.toString
    val (name, told) = ModelProcess.place(plan, context)
    Core(_.openModel(name, told, packed.python, home, ModelProcess.variables(plan, packed)))
  }
  private val batches = new Array[FileChannel](ModelProcess.Slots)
  private val results = new Array[FileChannel](ModelProcess.Slots)
  private var brought: Option[Path] = None

  private val task = new ModelCallbacks {
    override def isWanted(): java.lang.Boolean =
      !isOver() && SparkInternals.killReason(context) == null && !Thread.currentThread.isInterrupted

    override def model(): String = {
      letGoOfModel()
      val there = Paths.get(SparkInternals.pythonBroadcastFile(packed.model))
      if (plan.pickled) unpickled(there).toString else there.toString
    }

    private def unpickled(there: Path): Path = {
      val file = Files.createTempFile(SparkInternals.localDir.toPath, "phalanx-model-", "", ModelProcess.OfUser)
      brought = Some(file)
      PickledBytes.copy(there, file)
      file
    }
  }

  /** How many rows to give it next: those of one batch of the model's or of several. */
  def rowsAtOnce: Long = Core(_.rowsAtOnce(handle, plan.batchSize))

  /** Gives it a batch of so many rows and bytes, which `write` writes; `asked` is as `serving.py` says.
    *
    * Throws [[PredictException]] where there is no model.
    */
  def give(slot: Int, rows: Int, bytes: Long, asked: String)(write: WritableByteChannel => Unit): Unit = {
    val room = Core(_.layOutBatch(handle, slot, rows.toLong, bytes, asked))
    if (room(1) == 1) batches(slot) = reopened(batches(slot), room(0), WRITE)
    write(batches(slot).position(room(2)))
    val trouble = waiting(Core(_.giveBatch(handle, slot, task)))
    if (trouble != null) throw new PredictException(s"the model can't be had: $trouble")
  }

  /** What `read` makes of the answer to the oldest batch, which is in this slot; and how many nanoseconds the process
    * took for that.
    *
    * Throws [[PredictException]] where the model failed.
    */
  def take[A](slot: Int)(read: ReadableByteChannel => A): (A, Long) =
    waiting(Core(_.takeBatch(handle, task))) match {
      case Array("done", nanos, file, isNew, at, bytes) =>
        if (isNew.toInt == 1) results(slot) = reopened(results(slot), file.toLong, READ)
        (read(new ModelProcess.Part(results(slot), at.toLong, bytes.toLong)), nanos.toLong)
      case Array("refused", error, traceback) => throw new PredictException(s"$error\n\n$traceback".trim)
      case other => throw new PredictException(s"the model can't be had: ${other.tail.mkString("\n\n")}")
    }

  override def close(): Unit = {
    Core(_.closeModel(handle))
    letGoOfModel()
    (batches ++ results).filter(_ != null).foreach(_.close())
  }

  /** What was brought: the process has it by now, or never will. */
  private def letGoOfModel(): Unit = {
    brought.foreach(Files.deleteIfExists)
    brought = None
  }

  /** Throws what Spark expects of a task that was killed, if this one was. */
  private def waiting[A](ask: => A): A =
    try ask
    catch {
      case problem: Throwable =>
        SparkInternals.throwIfKilled(context)
        throw problem
    } finally letGoOfModel()

  private def reopened(before: FileChannel, descriptor: Long, how: java.nio.file.OpenOption): FileChannel = {
    if (before != null) before.close()
    FileChannel.open(Paths.get(s"/proc/self/fd/$descriptor"), how)
  }
}

private[scoring] object ModelProcess {

  /** How many batches may have no answer yet. */
  val Slots = 2

  private val OfUser = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))

  /** What the process of this task's executor and GPU is called, and what it is told; `connection.py` has the same. */
  private def place(plan: PredictPlan, context: TaskContext): (String, String) = {
    val told = Json.readObject(plan.told)
    val gpu = context.resources().get("gpu").map(_.addresses.head)
    gpu.fold(told.putNull("gpu"))(told.put("gpu", _))
    val number = context.partitionId() % told.path("processes").asInt(1)
    val autocast = told.path("autocast").asText
    (s"model ${plan.key} ${gpu.getOrElse("cpu")} $autocast $number", told.toString)
  }

  /** Names and values, in turn. PYTHONPATH is that of a PySpark worker. */
  private def variables(plan: PredictPlan, packed: PackedModel): Array[String] = {
    val here = RankEnvironment.here().grouped(2).map(pair => pair(0) -> pair(1)).toMap
    val path = Seq(here.get("PYTHONPATH"), packed.env.get("PYTHONPATH"), Option(System.getenv("PYTHONPATH")))
    val all = packed.env ++ plan.env ++ here +
      ("PYTHONPATH" -> path.flatten.filter(_.nonEmpty).mkString(File.pathSeparator))
    all.toArray.flatMap { case (name, value) => Array(name, value) }
  }

  /** So many bytes of a file, from a place on. */
  final private class Part(file: FileChannel, start: Long, bytes: Long) extends ReadableByteChannel {
    private var at = 0L

    override def read(into: ByteBuffer): Int =
      if (at == bytes) -1
      else {
        val room = into.limit()
        into.limit(into.position() + (bytes - at).min(into.remaining.toLong).toInt)
        val count = file.read(into, start + at)
        into.limit(room)
        at += count.max(0)
        count
      }

    override def isOpen: Boolean = file.isOpen

    override def close(): Unit = ()
  }
}
