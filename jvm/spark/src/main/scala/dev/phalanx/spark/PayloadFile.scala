package dev.phalanx.spark

import java.io.{Externalizable, ObjectInput, ObjectOutput}
import java.nio.file.{Files, Paths}

import com.esotericsoftware.kryo.DefaultSerializer
import com.esotericsoftware.kryo.serializers.JavaSerializer

/** A payload too large for a stage's closure: a file at the driver, broadcast to the executors in pieces.
  *
  * A closure is one array of bytes, of which the driver makes several copies; a broadcast never is one.
  *
  * @param path the file at the driver, which has to stay there until the stage is over
  */
@DefaultSerializer(classOf[JavaSerializer]) // where spark.serializer is Kryo, which knows nothing of Externalizable
final private[spark] class PayloadFile(private var path: String) extends Externalizable {
  private var arrived: Array[Byte] = null

  /** For `Externalizable`. */
  def this() = this(null)

  /** The payload: on an executor what came, at the driver what the file holds. */
  def bytes: Array[Byte] = if (arrived != null) arrived else Files.readAllBytes(Paths.get(path))

  override def writeExternal(out: ObjectOutput): Unit = {
    val file = Paths.get(path)
    out.writeInt(Math.toIntExact(Files.size(file)))
    val in = Files.newInputStream(file)
    try {
      val buffer = new Array[Byte](64 << 10)
      Iterator.continually(in.read(buffer)).takeWhile(_ >= 0).foreach(out.write(buffer, 0, _))
    } finally in.close()
  }

  override def readExternal(in: ObjectInput): Unit = {
    arrived = new Array[Byte](in.readInt())
    in.readFully(arrived)
  }
}
