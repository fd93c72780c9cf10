package dev.phalanx.spark.feeding

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, File}
import java.nio.channels.Channels
import java.nio.file.{Path, Paths}

import org.apache.arrow.vector.ipc.message.MessageSerializer
import org.apache.arrow.vector.ipc.{ReadChannel, WriteChannel}
import org.apache.arrow.vector.types.pojo.Schema
import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow

import dev.phalanx.spark.internal.{HostName, Json, SparkInternals}

/** What each task of a job that writes blocks does: its partition becomes a file of blocks. It is what
  * `feeding/blocks/write.py` does in a Python worker: FEED-59, FEED-60, FEED-61 and FEED-66 hold, and the answer is
  * the same.
  *
  * @param schema Arrow's, as [[BlockTask.packed]] packs it
  * @param columns how many columns it has
  * @param hashed whether a row has its hash behind them; else the core computes the hashes of each block
  * @param folder a path where it is kept, else below one of Spark's local directories
  * @param held what holds this executor once it has written blocks
  */
final private[spark] class BlockTask(
    schema: Array[Byte],
    columns: Int,
    hashed: Boolean,
    folder: String,
    kept: Boolean,
    blockBytes: Long,
    blockRows: Int,
    held: Option[Int]
) extends (Iterator[InternalRow] => Iterator[String])
    with Serializable {

  /** Writes the rows; the JSON that says where the blocks are, and what they have. None for an empty partition. */
  override def apply(rows: Iterator[InternalRow]): Iterator[String] =
    if (rows.isEmpty) Iterator.empty else Iterator.single(written(rows, TaskContext.get()))

  private def written(rows: Iterator[InternalRow], context: TaskContext): String = {
    val path = fileOf(context)
    val answer = Json.node()
    answer.put("partition", context.partitionId()).put("host", HostName.current).put("path", path.toString)
    val blocks = answer.putArray("blocks")
    val sums = new RowSums
    val allocator = SparkInternals.newArrowAllocator("phalanx-blocks")
    try {
      val block = new BlockRows(BlockTask.unpacked(schema), allocator)
      try
        BlockFile.make(path, kept) { file =>
          def endBlock(): Unit = {
            SparkInternals.throwIfKilled(context)
            val one = blocks.addObject().put("rows", block.rows)
            one.replace("facts", block.facts)
            val (content, sequence) = if (hashed) sums.taken() else block.sums
            one.put("content", content).put("sequence", sequence)
            block.writeTo(file)
            block.clear()
            val (start, bytes, checksum) = file.endBlock()
            one.put("start", start).put("bytes", bytes).put("checksum", checksum)
            ()
          }
          while (rows.hasNext) {
            val row = rows.next()
            if (block.rows > 0 && (block.rows == blockRows || block.bytes + sizeOf(row) > blockBytes)) endBlock()
            block.add(row)
            if (hashed) sums.add(row.getLong(columns))
            if ((block.rows & BlockTask.Often) == 0) SparkInternals.throwIfKilled(context)
          }
          endBlock()
        }
      finally block.close()
    } finally allocator.close()
    held.foreach(SparkInternals.holdExecutor(_, context.partitionId()))
    answer.toString
  }

  /** Partitions take turns: there may be a disk behind each directory. */
  private def fileOf(context: TaskContext): Path = {
    val name = s"${context.partitionId()}-${context.taskAttemptId()}"
    val directories = SparkInternals.blockManagerDirs()
    val parent =
      if (kept) new File(folder) else new File(directories(context.partitionId() % directories.length), folder)
    Paths.get(parent.getPath, name)
  }

  /** How many bytes of a row its hash takes: the number, and perhaps a word that says what is null. */
  private val hashBytes: Long =
    if (hashed)
      8L + UnsafeRow.calculateBitSetWidthInBytes(columns + 1) - UnsafeRow.calculateBitSetWidthInBytes(columns)
    else 0

  /** About how many bytes a row has that Spark gives, without its hash. */
  private def sizeOf(row: InternalRow): Long = row match {
    case unsafe: UnsafeRow => unsafe.getSizeInBytes - hashBytes
    case _                 => 0
  }
}

private[spark] object BlockTask {

  /** How many rows less one there are between looks whether the task was killed. */
  private val Often = 0xfff

  def packed(schema: Schema): Array[Byte] = {
    val bytes = new ByteArrayOutputStream
    MessageSerializer.serialize(new WriteChannel(Channels.newChannel(bytes)), schema)
    bytes.toByteArray
  }

  def unpacked(schema: Array[Byte]): Schema =
    MessageSerializer.deserializeSchema(new ReadChannel(Channels.newChannel(new ByteArrayInputStream(schema))))
}
