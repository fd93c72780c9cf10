package dev.phalanx.spark.feeding

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.types.FloatingPointPrecision.{DOUBLE, SINGLE}
import org.apache.arrow.vector.types.pojo.{ArrowType, Field}

/** Which column a field of a schema has. */
private[feeding] object ColumnChoice {

  /** A column for what Spark gives for this field.
    *
    * Throws `IllegalArgumentException` for a type that no data set may have.
    */
  def of(field: Field, allocator: BufferAllocator): Column = {
    def child = field.getChildren.get(0)
    field.getType match {
      case _: ArrowType.Bool                                                  => new BooleanColumn(allocator)
      case kind: ArrowType.Int if kind.getBitWidth == 8                       => new ByteColumn(allocator)
      case kind: ArrowType.Int if kind.getBitWidth == 16                      => new ShortColumn(allocator)
      case kind: ArrowType.Int if kind.getBitWidth == 32                      => new IntColumn(allocator)
      case _: ArrowType.Int                                                   => new LongColumn(allocator)
      case kind: ArrowType.FloatingPoint if kind.getPrecision == SINGLE       => new FloatColumn(allocator)
      case kind: ArrowType.FloatingPoint if kind.getPrecision == DOUBLE       => new DoubleColumn(allocator)
      case _: ArrowType.Date                                                  => new IntColumn(allocator)
      case _: ArrowType.Timestamp | _: ArrowType.Duration | _: ArrowType.Time => new LongColumn(allocator)
      case kind: ArrowType.Decimal  => new DecimalColumn(kind.getPrecision, kind.getScale, allocator)
      case _: ArrowType.Utf8        => new BytesColumn(isText = true, wide = false, allocator)
      case _: ArrowType.LargeUtf8   => new BytesColumn(isText = true, wide = true, allocator)
      case _: ArrowType.Binary      => new BytesColumn(isText = false, wide = false, allocator)
      case _: ArrowType.LargeBinary => new BytesColumn(isText = false, wide = true, allocator)
      case _: ArrowType.List        => new ListColumn(of(child, allocator), allocator)
      case _: ArrowType.Map         => new MapColumn(structOf(child, allocator), allocator)
      case _: ArrowType.Struct      => structOf(field, allocator)
      case other                    =>
        throw new IllegalArgumentException(
          s"the column ${field.getName} has the Arrow type $other, which blocks don't support"
        )
    }
  }

  private def structOf(field: Field, allocator: BufferAllocator): StructColumn =
    new StructColumn(field.getChildren.asScala.map(of(_, allocator)).toArray, allocator)
}
