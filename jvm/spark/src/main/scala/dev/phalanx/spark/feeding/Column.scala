package dev.phalanx.spark.feeding

import java.util

import scala.collection.mutable.ArrayBuilder

import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}
import org.apache.arrow.vector.ipc.message.ArrowFieldNode
import org.apache.spark.sql.catalyst.expressions.SpecializedGetters
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.unsafe.Platform

/** A column of a block's rows, in memory as Arrow has it.
  *
  * Spark's own `ArrowWriter` does the same by Arrow's vectors, which look at the bounds and set a bit for each value.
  * Here values are put where they belong, arrays of numbers and text as a whole, and bits are for nulls.
  */
abstract private[feeding] class Column(allocator: BufferAllocator) extends AutoCloseable {
  private val validity = new GrowingBuffer(allocator)
  // In Arrow's order, in which subclasses make them.
  private var buffers = Vector(validity)
  private var total = 0
  private var nullCount = 0

  /** What its values are to the core, which hashes them. */
  def kind: ColumnKind.Value

  /** How many values and nulls it has. */
  final def rows: Int = total

  final def nulls: Int = nullCount

  /** How many bits each row takes at least. */
  def fixedBits: Long

  /** How many bytes the rows take beyond that. */
  def variableBytes: Long

  /** Whether rows may take more than that. */
  def isVariable: Boolean

  final def write(from: SpecializedGetters, ordinal: Int): Unit =
    if (from.isNullAt(ordinal)) writeNull()
    else {
      writeValue(from, ordinal)
      total += 1
    }

  final def writeNull(): Unit = {
    extendValidity(total / 8 + 1)
    val at = validity.at((total / 8).toLong)
    Platform.putByte(null, at, (Platform.getByte(null, at) & ~(1 << (total & 7))).toByte)
    nullCount += 1
    skipValue()
    total += 1
  }

  /** Appends all elements of an array. */
  def writeAll(from: ArrayData): Unit = {
    val count = from.numElements()
    var i = 0
    while (i < count) {
      write(from, i)
      i += 1
    }
  }

  /** Forgets the rows. */
  def clear(): Unit = {
    buffers.foreach(_.clear())
    children.foreach(_.clear())
    total = 0
    nullCount = 0
  }

  /** Adds what Arrow's format has of it: its lengths, and its buffers, which stay this column's. */
  final def addTo(nodes: util.List[ArrowFieldNode], contents: util.List[ArrowBuf]): Unit = {
    complete()
    nodes.add(new ArrowFieldNode(total.toLong, nullCount.toLong))
    buffers.foreach(buffer => contents.add(buffer.content))
    children.foreach(_.addTo(nodes, contents))
  }

  /** Adds what `Native.rowSumsOf` wants of it, which is good until something is written. */
  final def describeTo(numbers: ArrayBuilder[Long]): Unit = {
    complete()
    numbers ++= Seq[Long](kind.id.toLong, total.toLong, children.size.toLong, buffers.size.toLong)
    buffers.foreach(buffer => numbers ++= Seq(buffer.at(0), buffer.bytes))
    children.foreach(_.describeTo(numbers))
  }

  override def close(): Unit = {
    buffers.foreach(_.close())
    children.foreach(_.close())
  }

  /** The columns of what its values are made of. */
  protected def children: Seq[Column] = Nil

  /** Memory for its values, which is cleared and closed with it. */
  final protected def newBuffer(): GrowingBuffer = {
    buffers :+= new GrowingBuffer(allocator)
    buffers.last
  }

  /** Appends a value that is no null. */
  protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit

  /** Appends what stands in a null's place. */
  protected def skipValue(): Unit

  /** Has the buffers be what Arrow's format wants for so many rows. */
  protected def complete(): Unit =
    // Without nulls there are no bits.
    if (nullCount > 0) extendValidity((total + 7) / 8)

  /** Counts values that were appended together. */
  final protected def wrote(count: Int): Unit = total += count

  /** Which values are none is known for so many bytes of bits; until a null is written all are values. */
  private def extendValidity(bytes: Int): Unit =
    if (bytes > validity.bytes) validity.fill(bytes - validity.bytes, -1)
}
