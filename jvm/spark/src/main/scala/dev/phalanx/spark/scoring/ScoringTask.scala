package dev.phalanx.spark.scoring

import java.nio.ByteBuffer
import java.nio.channels.WritableByteChannel

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{
  Attribute,
  AttributeSet,
  Expression,
  JoinedRow,
  NamedExpression,
  UnsafeProjection,
  UnsafeRow
}
import org.apache.spark.sql.execution.metric.SQLMetric

import dev.phalanx.spark.feeding.{BlockRows, BlockTask}
import dev.phalanx.spark.internal.SparkInternals

/** What each task of a query with a model does: of each of its rows, and the struct of what the model made of it, the
  * columns that are wanted.
  *
  *   - JAR-32 (in-order): each row comes out once, where it was.
  *   - JAR-33 (bounded): a task has the rows of two batches in memory, and of one that it writes. Each may be several
  *     batches of the model's where these have less than 4 MB (SCORE-25).
  *   - JAR-34 (let-go): however the task ends, it lets go of the process, and its memory is given back. So it does
  *     when a partition's rows are out, since a task can have many partitions (`coalesce`).
  *
  * @param schema Arrow's of the model's inputs, as `BlockTask.packed` packs it
  * @param inputs what the model is given of each row of `has`
  * @param made the struct
  * @param wanted what comes out, of `has` and `made`
  */
final private[scoring] class ScoringTask(
    plan: PredictPlan,
    packed: PackedModel,
    schema: Array[Byte],
    inputs: Seq[Expression],
    has: Seq[Attribute],
    made: Attribute,
    wanted: Seq[NamedExpression],
    metrics: Map[String, SQLMetric]
) extends (Iterator[InternalRow] => Iterator[InternalRow])
    with Serializable {

  /** What is needed of a row once the model has its inputs. */
  private def kept: Seq[Attribute] = {
    val needed = AttributeSet(wanted.flatMap(_.references))
    has.filter(needed.contains)
  }

  /** Copies that of a row. */
  private def newKeeper(): InternalRow => InternalRow =
    if (kept.size == has.size) _.copy()
    else {
      val toKept = UnsafeProjection.create(kept, has)
      row => toKept(row).copy()
    }

  /** Adds a row's inputs to a batch; those that are columns are taken from where they are. */
  private def newAdder(batch: BlockRows): InternalRow => Unit = {
    val places = inputs.map {
      case column: Attribute => has.indexWhere(_.exprId == column.exprId)
      case _                 => -1
    }.toArray
    if (!places.contains(-1)) batch.add(_, places)
    else {
      val toInputs = UnsafeProjection.create(inputs, has)
      row => batch.add(toInputs(row))
    }
  }

  override def apply(rows: Iterator[InternalRow]): Iterator[InternalRow] =
    if (rows.isEmpty) Iterator.empty else new Scored(rows, TaskContext.get())

  /** A batch that has no answer yet. */
  private class Piece(val slot: Int, val rows: Array[InternalRow])

  private class Scored(rows: Iterator[InternalRow], context: TaskContext) extends Iterator[InternalRow] {
    private val held = new Held
    // Before anything is owned, since each of these may fail.
    context.addTaskCompletionListener[Unit](_ => held.close())
    private val allocator = held.own(SparkInternals.newArrowAllocator("phalanx-predict"))
    private val batch = held.own(new BlockRows(BlockTask.unpacked(schema), allocator))
    private val process = held.own(new ModelProcess(plan, packed, context, () => held.isOver))
    private val addInputs = newAdder(batch)
    private val keptOf = newKeeper()
    private val toResult = UnsafeProjection.create(wanted, kept :+ made)
    private val joined = new JoinedRow
    private var waiting = Vector.empty[Piece]
    private var count = 0
    private var first = 0L
    private var piece: Piece = _
    private var outputs: Outputs = _
    private var at = 0
    held.own[AutoCloseable](() => endPiece())

    override def hasNext: Boolean = {
      val now = piece
      (now != null && at < now.rows.length) || held.using(advanced())
    }

    override def next(): InternalRow = {
      if (!hasNext) throw new NoSuchElementException("there are no more rows")
      held.using {
        if (held.isOver) throw new NoSuchElementException("the task has ended")
        val row = toResult(joined(piece.rows(at), outputs.row(at)))
        at += 1
        row
      }
    }

    /** Takes the next answer, having kept the process busy; whether there is one. */
    private def advanced(): Boolean = {
      endPiece()
      while (!held.isOver && waiting.size < ModelProcess.Slots && rows.hasNext) give()
      val isOne = !held.isOver && waiting.nonEmpty
      if (isOne) take() else held.close()
      isOne
    }

    private def give(): Unit = {
      val keeping = new ArrayBuffer[InternalRow](plan.batchSize.min(1024))
      val atOnce = process.rowsAtOnce
      var keptBytes = 0L
      def isFull =
        keeping.size >= atOnce || batch.bytes >= ScoringTask.MostBytes ||
          (keeping.size % plan.batchSize == 0 && keptBytes >= ScoringTask.MostKeptAtOnce)
      while (!held.isOver && rows.hasNext && !isFull) {
        val row = rows.next()
        val kept = keptOf(row)
        keeping += kept
        keptBytes += ScoringTask.bytesOf(kept)
        addInputs(row)
      }
      val size = new ScoringTask.Counting
      batch.writeTo(size)
      val slot = count % ModelProcess.Slots
      waited(process.give(slot, keeping.size, size.bytes, s"$first ${plan.rows}")(batch.writeTo))
      batch.clear()
      waiting :+= new Piece(slot, keeping.toArray)
      count += 1
      first += keeping.size
    }

    private def take(): Unit = {
      piece = waiting.head
      waiting = waiting.tail
      val (found, nanos) = waited(process.take(piece.slot)(in => new Outputs(in, allocator)))
      outputs = found
      at = 0
      val scored = piece.rows.length.toLong
      val batches = (scored + plan.batchSize - 1) / plan.batchSize
      metrics("batches") += batches
      metrics("rows") += scored
      metrics("model") += nanos
      ScoringCounts.add(scored, batches, nanos)
    }

    private def waited[A](wait: => A): A = {
      val began = System.nanoTime()
      try wait
      finally {
        val took = System.nanoTime() - began
        metrics("waiting") += took
        ScoringCounts.addWait(took)
      }
    }

    private def endPiece(): Unit = {
      piece = null
      if (outputs != null) outputs.close()
      outputs = null
    }
  }
}

private[scoring] object ScoringTask {

  /** How many bytes of inputs a batch has, unless one row has more. */
  private val MostBytes = 64L << 20

  /** A task that keeps rows of so many bytes adds no further batch of the model's to what it gives at once. */
  private val MostKeptAtOnce = 4L << 20

  /** Nobody knows of other rows, so they are kept one batch at a time. */
  private def bytesOf(row: InternalRow): Long = row match {
    case row: UnsafeRow => row.getSizeInBytes.toLong
    case _              => MostKeptAtOnce
  }

  /** Counts the bytes that are written. */
  final private class Counting extends WritableByteChannel {
    var bytes = 0L

    override def write(from: ByteBuffer): Int = {
      val count = from.remaining
      from.position(from.limit())
      bytes += count
      count
    }

    override def isOpen: Boolean = true

    override def close(): Unit = ()
  }
}
