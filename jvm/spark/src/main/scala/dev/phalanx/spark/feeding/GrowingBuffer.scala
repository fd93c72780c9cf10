package dev.phalanx.spark.feeding

import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}
import org.apache.spark.unsafe.Platform

/** Memory outside of the heap that values are appended to. It grows as they need it, and stays when it is emptied. */
final private[feeding] class GrowingBuffer(allocator: BufferAllocator) extends AutoCloseable {
  private var memory: ArrowBuf = _
  private var address = 0L
  private var capacity = 0L
  private var used = 0L

  /** How many bytes were appended. */
  def bytes: Long = used

  /** Appends so many bytes: the address at which they are to be put at once. */
  def append(count: Long): Long = {
    val end = used + count
    if (end > capacity) grow(end)
    val at = address + used
    used = end
    at
  }

  /** Where a byte is that was appended. */
  def at(byte: Long): Long = address + byte

  def appendInt(value: Int): Unit = Platform.putInt(null, append(4), value)

  def appendLong(value: Long): Unit = Platform.putLong(null, append(8), value)

  /** Appends one byte again and again. */
  def fill(count: Long, byte: Byte): Unit = Platform.setMemory(append(count), byte, count)

  def clear(): Unit = used = 0

  /** What was appended, in this memory: good until something is appended. */
  def content: ArrowBuf =
    if (memory == null) allocator.getEmpty
    else {
      memory.readerIndex(0)
      memory.writerIndex(used)
    }

  override def close(): Unit = if (memory != null) {
    memory.close()
    memory = null
    capacity = 0
  }

  private def grow(least: Long): Unit = {
    val bigger = allocator.buffer(least.max(2 * capacity).max(GrowingBuffer.FirstBytes))
    if (used > 0) Platform.copyMemory(null, address, null, bigger.memoryAddress, used)
    close()
    memory = bigger
    address = bigger.memoryAddress
    capacity = bigger.capacity
  }
}

private object GrowingBuffer {
  val FirstBytes: Long = 4 << 10
}
