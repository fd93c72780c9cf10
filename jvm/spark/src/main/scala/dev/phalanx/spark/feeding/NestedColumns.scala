package dev.phalanx.spark.feeding

import org.apache.arrow.memory.BufferAllocator
import org.apache.spark.sql.catalyst.expressions.{SpecializedGetters, UnsafeArrayData, UnsafeRow}
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.unsafe.Platform

/** A column whose values have different lengths: where each ends is behind where the one before did. */
abstract private[feeding] class VariableColumn(allocator: BufferAllocator, wide: Boolean) extends Column(allocator) {
  private val offsets = newBuffer()

  override def fixedBits: Long = if (wide) 64 else 32

  override def isVariable: Boolean = true

  /** Where the last value ends. */
  protected def end: Long

  /** Has the value that was written end where all ends. */
  final protected def ended(): Unit = {
    if (offsets.bytes == 0) appendOffset(0)
    appendOffset(end)
  }

  override protected def skipValue(): Unit = ended()

  override protected def complete(): Unit = {
    super.complete()
    if (offsets.bytes == 0) appendOffset(0)
  }

  private def appendOffset(value: Long): Unit =
    if (wide) offsets.appendLong(value) else offsets.appendInt(Math.toIntExact(value))
}

/** Of strings and of binary. */
final private[feeding] class BytesColumn(isText: Boolean, wide: Boolean, allocator: BufferAllocator)
    extends VariableColumn(allocator, wide) {
  private val values = newBuffer()

  override def kind: ColumnKind.Value = if (wide) ColumnKind.WideBytes else ColumnKind.Bytes

  override def variableBytes: Long = values.bytes

  override protected def end: Long = values.bytes

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit = {
    // What `UnsafeRow.getUTF8String` and `getBinary` do, without objects: a word has both offset and size.
    from match {
      case row: UnsafeRow         => copy(row.getBaseObject, row.getBaseOffset, row.getLong(ordinal))
      case array: UnsafeArrayData => copy(array.getBaseObject, array.getBaseOffset, array.getLong(ordinal))
      case other                  =>
        val bytes = if (isText) other.getUTF8String(ordinal).getBytes else other.getBinary(ordinal)
        copy(bytes, Platform.BYTE_ARRAY_OFFSET.toLong, bytes.length.toLong)
    }
    ended()
  }

  private def copy(from: AnyRef, start: Long, place: Long): Unit = {
    val size = place & 0xffffffffL
    Platform.copyMemory(from, start + (place >>> 32), null, values.append(size), size)
  }
}

/** Of arrays. */
final private[feeding] class ListColumn(val values: Column, allocator: BufferAllocator)
    extends VariableColumn(allocator, wide = false) {
  private var least = Int.MaxValue
  private var most = -1

  /** The length of the shortest array; -1 where there is none. */
  def shortest: Int = if (most < 0) -1 else least

  /** The length of the longest array; -1 where there is none. */
  def longest: Int = most

  override def kind: ColumnKind.Value = ColumnKind.List

  override def variableBytes: Long = values.rows * values.fixedBits / 8 + values.variableBytes

  override protected def end: Long = values.rows.toLong

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit = {
    val array = from.getArray(ordinal)
    values.writeAll(array)
    least = least.min(array.numElements())
    most = most.max(array.numElements())
    ended()
  }

  override protected def children: Seq[Column] = Seq(values)

  override def clear(): Unit = {
    super.clear()
    least = Int.MaxValue
    most = -1
  }
}

/** Of structs; what stands in a null's place is nulls. */
final private[feeding] class StructColumn(fields: Array[Column], allocator: BufferAllocator)
    extends Column(allocator) {
  override def kind: ColumnKind.Value = ColumnKind.Struct

  override val fixedBits: Long = fields.map(_.fixedBits).sum

  override val isVariable: Boolean = fields.exists(_.isVariable)

  override def variableBytes: Long = if (isVariable) fields.map(_.variableBytes).sum else 0

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit = {
    val row = from.getStruct(ordinal, fields.length)
    fields.indices.foreach(i => fields(i).write(row, i))
  }

  /** Appends structs whose fields are in an array each. */
  def writeColumns(count: Int, arrays: ArrayData*): Unit = {
    arrays.indices.foreach(i => fields(i).writeAll(arrays(i)))
    wrote(count)
  }

  override protected def skipValue(): Unit = fields.foreach(_.writeNull())

  override protected def children: Seq[Column] = fields.toSeq
}

/** Of maps: lists of structs of a key and a value. */
final private[feeding] class MapColumn(entries: StructColumn, allocator: BufferAllocator)
    extends VariableColumn(allocator, wide = false) {
  override def kind: ColumnKind.Value = ColumnKind.Map

  override def variableBytes: Long = entries.rows * entries.fixedBits / 8 + entries.variableBytes

  override protected def end: Long = entries.rows.toLong

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit = {
    val map = from.getMap(ordinal)
    entries.writeColumns(map.numElements(), map.keyArray(), map.valueArray())
    ended()
  }

  override protected def children: Seq[Column] = Seq(entries)
}
