package dev.phalanx.spark.feeding

import java.nio.channels.WritableByteChannel
import java.util

import scala.collection.mutable.ArrayBuilder
import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}
import org.apache.arrow.vector.ipc.WriteChannel
import org.apache.arrow.vector.ipc.message.{ArrowFieldNode, ArrowRecordBatch, MessageSerializer}
import org.apache.arrow.vector.types.pojo.Schema
import org.apache.spark.sql.catalyst.InternalRow

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.jni.Core

/** The rows of a block, until they are written as an IPC stream of Arrow's: the schema, one record batch, and the
  * end. Then the next block's take their place.
  */
final private[spark] class BlockRows(schema: Schema, allocator: BufferAllocator) extends AutoCloseable {
  private val names = schema.getFields.asScala.map(_.getName).toArray
  private val columns = schema.getFields.asScala.map(ColumnChoice.of(_, allocator)).toArray
  private val variable = columns.filter(_.isVariable)
  private val fixedBits = columns.map(_.fixedBits).sum
  private val inOrder = columns.indices.toArray
  private var count = 0

  def rows: Int = count

  /** About how many bytes they take. */
  def bytes: Long = {
    var sum = count * fixedBits >>> 3
    var i = 0
    while (i < variable.length) {
      sum += variable(i).variableBytes
      i += 1
    }
    sum
  }

  def add(row: InternalRow): Unit = add(row, inOrder)

  /** Adds the columns of a row that are at these places. */
  def add(row: InternalRow, places: Array[Int]): Unit = {
    var i = 0
    while (i < columns.length) {
      columns(i).write(row, places(i))
      i += 1
    }
    count += 1
  }

  /** The sum of their hashes, and the polynomial of these, as [[RowSums]] has them of Spark's hashes. */
  def sums: (Long, Long) = {
    val numbers = new ArrayBuilder.ofLong
    columns.foreach(_.describeTo(numbers))
    val found = Core(_.rowSumsOf(numbers.result()))
    (found(0), found(1))
  }

  /** Writes them. */
  def writeTo(channel: WritableByteChannel): Unit = {
    val out = new WriteChannel(channel)
    MessageSerializer.serialize(out, schema)
    val nodes = new util.ArrayList[ArrowFieldNode]
    val buffers = new util.ArrayList[ArrowBuf]
    columns.foreach(_.addTo(nodes, buffers))
    val batch = new ArrowRecordBatch(count, nodes, buffers)
    try MessageSerializer.serialize(out, batch)
    finally batch.close()
    out.writeIntLittleEndian(MessageSerializer.IPC_CONTINUATION_TOKEN)
    out.writeIntLittleEndian(0)
    ()
  }

  /** Forgets them. */
  def clear(): Unit = {
    columns.foreach(_.clear())
    count = 0
  }

  /** What a loader has to know of the columns before it reads them; `feeding/blocks/write.py` says what. */
  def facts: JsonNode = {
    val facts = Json.node()
    val nulls = facts.putObject("nulls")
    val lengths = facts.putObject("lengths")
    names.indices.foreach { i =>
      val levels = levelsOf(columns(i))
      countNulls(nulls, names(i), columns(i))
      levels.foreach(list => countNulls(nulls, s"${names(i)}[]", list.values))
      if (levels.nonEmpty) {
        val found = lengths.putArray(names(i))
        levels.foreach(list => found.addArray().add(list.shortest).add(list.longest))
      }
    }
    facts
  }

  override def close(): Unit = columns.foreach(_.close())

  /** A column of arrays, and those in its arrays. */
  private def levelsOf(column: Column): List[ListColumn] = column match {
    case list: ListColumn => list :: levelsOf(list.values)
    case _                => Nil
  }

  private def countNulls(nulls: ObjectNode, name: String, column: Column): Unit =
    if (column.nulls > 0) nulls.put(name, nulls.path(name).asInt(0) + column.nulls): Unit
}
