package dev.phalanx.spark.feeding

import org.apache.arrow.memory.BufferAllocator
import org.apache.spark.sql.catalyst.expressions.{SpecializedGetters, UnsafeArrayData}
import org.apache.spark.sql.catalyst.util.ArrayData
import org.apache.spark.sql.types.Decimal
import org.apache.spark.unsafe.Platform

/** A column whose values all have the same number of bytes. */
abstract private[feeding] class FixedColumn(width: Int, allocator: BufferAllocator) extends Column(allocator) {
  private val values = newBuffer()

  override def fixedBits: Long = 8L * width

  override def variableBytes: Long = 0

  override def isVariable: Boolean = false

  /** Where the next value is to be put. */
  final protected def next(): Long = values.append(width.toLong)

  override protected def skipValue(): Unit = values.fill(width.toLong, 0)

  /** Appends an array of Spark's that has the same bytes as Arrow has; whether it is one. */
  final protected def copied(from: ArrayData): Boolean = from match {
    case array: UnsafeArrayData if !FixedColumn.hasNulls(array) =>
      val bytes = array.numElements().toLong * width
      val start = array.getBaseOffset + UnsafeArrayData.calculateHeaderPortionInBytes(array.numElements())
      Platform.copyMemory(array.getBaseObject, start, null, values.append(bytes), bytes)
      wrote(array.numElements())
      true
    case _ => false
  }
}

private object FixedColumn {

  /** Whether a bit says so, of those behind the number of elements. */
  private def hasNulls(array: UnsafeArrayData): Boolean = {
    val end = array.getBaseOffset + UnsafeArrayData.calculateHeaderPortionInBytes(array.numElements())
    var at = array.getBaseOffset + 8
    while (at < end && Platform.getLong(array.getBaseObject, at) == 0) at += 8
    at < end
  }
}

/** A column of numbers, arrays of which Spark has in the same bytes as Arrow. */
abstract private[feeding] class NumberColumn(width: Int, allocator: BufferAllocator)
    extends FixedColumn(width, allocator) {
  override def writeAll(from: ArrayData): Unit = if (!copied(from)) super.writeAll(from)
}

final private[feeding] class ByteColumn(allocator: BufferAllocator) extends NumberColumn(1, allocator) {
  override def kind: ColumnKind.Value = ColumnKind.Byte

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit =
    Platform.putByte(null, next(), from.getByte(ordinal))
}

final private[feeding] class ShortColumn(allocator: BufferAllocator) extends NumberColumn(2, allocator) {
  override def kind: ColumnKind.Value = ColumnKind.Short

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit =
    Platform.putShort(null, next(), from.getShort(ordinal))
}

/** Of int, and of date. */
final private[feeding] class IntColumn(allocator: BufferAllocator) extends NumberColumn(4, allocator) {
  override def kind: ColumnKind.Value = ColumnKind.Int

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit =
    Platform.putInt(null, next(), from.getInt(ordinal))
}

/** Of bigint, of timestamps and of day-time intervals. */
final private[feeding] class LongColumn(allocator: BufferAllocator) extends NumberColumn(8, allocator) {
  override def kind: ColumnKind.Value = ColumnKind.Long

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit =
    Platform.putLong(null, next(), from.getLong(ordinal))
}

final private[feeding] class FloatColumn(allocator: BufferAllocator) extends NumberColumn(4, allocator) {
  override def kind: ColumnKind.Value = ColumnKind.Float

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit =
    Platform.putFloat(null, next(), from.getFloat(ordinal))
}

final private[feeding] class DoubleColumn(allocator: BufferAllocator) extends NumberColumn(8, allocator) {
  override def kind: ColumnKind.Value = ColumnKind.Double

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit =
    Platform.putDouble(null, next(), from.getDouble(ordinal))
}

/** Of decimals: an integer of 16 bytes, the lowest first. */
final private[feeding] class DecimalColumn(precision: Int, scale: Int, allocator: BufferAllocator)
    extends FixedColumn(16, allocator) {
  private val isLong = precision <= Decimal.MAX_LONG_DIGITS

  override def kind: ColumnKind.Value = if (isLong) ColumnKind.ShortDecimal else ColumnKind.LongDecimal

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit = {
    val value = from.getDecimal(ordinal, precision, scale)
    val at = next()
    if (isLong) put(at, value.toUnscaledLong, value.toUnscaledLong >> 63)
    else {
      val whole = value.toJavaBigDecimal.unscaledValue
      put(at, whole.longValue, whole.shiftRight(64).longValue)
    }
  }

  private def put(at: Long, low: Long, high: Long): Unit = {
    Platform.putLong(null, at, low)
    Platform.putLong(null, at + 8, high)
  }
}

/** Of booleans, a bit each. */
final private[feeding] class BooleanColumn(allocator: BufferAllocator) extends Column(allocator) {
  private val bits = newBuffer()

  override def kind: ColumnKind.Value = ColumnKind.Bool

  override def fixedBits: Long = 1

  override def variableBytes: Long = 0

  override def isVariable: Boolean = false

  override protected def writeValue(from: SpecializedGetters, ordinal: Int): Unit = {
    skipValue()
    if (from.getBoolean(ordinal)) {
      val at = bits.at((rows / 8).toLong)
      Platform.putByte(null, at, (Platform.getByte(null, at) | (1 << (rows & 7))).toByte)
    }
  }

  override protected def skipValue(): Unit = if ((rows & 7) == 0) bits.fill(1, 0)

}
