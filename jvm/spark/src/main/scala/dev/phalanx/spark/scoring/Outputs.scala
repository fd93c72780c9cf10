package dev.phalanx.spark.scoring

import java.nio.channels.ReadableByteChannel

import scala.jdk.CollectionConverters._

import org.apache.arrow.memory.BufferAllocator
import org.apache.arrow.vector.ipc.ArrowStreamReader
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector
import org.apache.spark.sql.types.BooleanType
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnVector, ColumnarBatch}

/** What a model made of a batch, in memory of its own, until it is closed. */
final private[scoring] class Outputs(in: ReadableByteChannel, allocator: BufferAllocator)
    extends AutoCloseable {
  private val reader = new ArrowStreamReader(in, allocator)
  private val batch =
    try {
      reader.loadNextBatch()
      val root = reader.getVectorSchemaRoot
      val columns = root.getFieldVectors.asScala.map(new ArrowColumnVector(_): ColumnVector).toArray
      // The last field says what is to be planned, and has no values.
      val mark = new ConstantColumnVector(root.getRowCount, BooleanType)
      mark.setNull()
      new ColumnarBatch(columns :+ mark, root.getRowCount)
    } catch {
      case problem: Throwable =>
        reader.close()
        throw problem
    }

  /** The struct beside the row at this place, as the one column of a row. It is good until the next call. */
  def row(at: Int): InternalRow = new GenericInternalRow(Array[Any](batch.getRow(at)))

  override def close(): Unit = reader.close()
}
