package dev.phalanx.spark.ways

import java.io.{ByteArrayInputStream, ByteArrayOutputStream, DataInputStream, DataOutputStream, IOException}

/** What a client of Spark Connect and its relay say to each other. Numbers are big-endian, texts as
  * `DataInput.readUTF` reads them. `python/phalanx/connect/relay_wire.py` is the client's side of it.
  *
  * A command begins with its kind:
  *
  *   - `O`, open: version, relay, the number of the next message that the client has not had, after how many
  *     milliseconds of silence the client is gone, and the port to begin with. It is answered for as long as the
  *     relay lives, by messages: a number, then frames.
  *   - `S`, send: relay, the command's number, that of the next message that the client has not had; how many
  *     connections' bytes have been consumed, and for each the connection and how many in all; then frames. It is
  *     answered by the connections from which the client should read nothing for now.
  *   - `C`, close: relay.
  *
  * A frame is a kind, a connection, a length and bytes.
  */
private[ways] object RelayWire {
  val Address: Byte = 'a'
  val Opened: Byte = 'o'
  val Data: Byte = 'd'
  val Ended: Byte = 'e'

  /** The longest frame of a client's. */
  private val MostBytes = 1 << 20

  final case class Frame(kind: Byte, connection: Int, bytes: Array[Byte])

  sealed trait Command { def relay: String }
  final case class Open(relay: String, version: String, next: Long, patienceMillis: Int, port: Int) extends Command
  final case class Send(relay: String, number: Long, next: Long, consumed: Seq[(Int, Long)], frames: Seq[Frame])
      extends Command
  final case class Close(relay: String) extends Command

  /** A command that a client sent.
    *
    * @throws java.lang.IllegalArgumentException it is none
    */
  def command(bytes: Array[Byte]): Command = {
    val in = new DataInputStream(new ByteArrayInputStream(bytes))
    try in.readByte() match {
        case 'O' =>
          val (version, relay) = (in.readUTF(), in.readUTF())
          Open(relay, version, in.readLong(), in.readInt(), in.readInt())
        case 'S' =>
          val (relay, number, next) = (in.readUTF(), in.readLong(), in.readLong())
          val consumed = List.fill(counted(in, 12))(in.readInt() -> in.readLong())
          Send(relay, number, next, consumed, frames(in))
        case 'C'   => Close(in.readUTF())
        case other => throw new IOException(s"unknown kind $other")
      }
    catch {
      case problem: IOException =>
        throw new IllegalArgumentException(s"this is not a Phalanx command: ${problem.getMessage}")
    }
  }

  /** A numbered message of frames. */
  def message(number: Long, frames: Iterable[Frame]): Array[Byte] = written { out =>
    out.writeLong(number)
    frames.foreach { frame =>
      out.writeByte(frame.kind.toInt)
      out.writeInt(frame.connection)
      out.writeInt(frame.bytes.length)
      out.write(frame.bytes)
    }
  }

  /** What answers a [[Send]]. */
  def stalled(connections: Iterable[Int]): Array[Byte] = written { out =>
    out.writeInt(connections.size)
    connections.foreach(out.writeInt)
  }

  private def frames(in: DataInputStream): Seq[Frame] =
    Iterator
      .continually(in)
      .takeWhile(_.available > 0)
      .map { in =>
        val (kind, connection) = (in.readByte(), in.readInt())
        val bytes = new Array[Byte](counted(in, 1))
        in.readFully(bytes)
        Frame(kind, connection, bytes)
      }
      .toList

  /** How many things of `size` bytes follow. */
  private def counted(in: DataInputStream, size: Int): Int = {
    val count = in.readInt()
    if (count < 0 || count > MostBytes || count.toLong * size > in.available)
      throw new IOException("wrong length")
    count
  }

  private def written(write: DataOutputStream => Unit): Array[Byte] = {
    val bytes = new ByteArrayOutputStream
    write(new DataOutputStream(bytes))
    bytes.toByteArray
  }
}
