package dev.phalanx.spark.ways

/** What an executor's end of a connection sends the driver's end: the bytes that have come since, or none.
  *
  * WAY-10 (javas-classes): what travels consists of Java's own classes. Spark reads an answer in a thread of an
  * executor that doesn't know the jar's classes, and an executor ends when it can't.
  *
  * @param connection which it is, among all of all executors
  * @param isOver whether the node has closed it: nothing comes after these bytes
  */
final private[spark] case class TunnelTurn(job: String, connection: String, bytes: Array[Byte], isOver: Boolean) {
  def packed: Array[AnyRef] = Array(job, connection, bytes, Boolean.box(isOver))
}

private[spark] object TunnelTurn {

  /** The turn that was packed; `None` for anything else. */
  def unpack(message: Any): Option[TunnelTurn] = message match {
    case Array(job: String, connection: String, bytes: Array[Byte], isOver: java.lang.Boolean) =>
      Some(TunnelTurn(job, connection, bytes, isOver))
    case _ => None
  }
}

/** What the driver's end answers.
  *
  * @param taken how many of the turn's bytes the hub has taken; the others come again with the next turn
  * @param bytes what the hub has sent since the last turn
  * @param isOver whether the hub has closed the connection: nothing comes after these bytes
  */
final private[spark] case class TunnelAnswer(taken: Int, bytes: Array[Byte], isOver: Boolean) {
  def packed: Array[AnyRef] = Array(Int.box(taken), bytes, Boolean.box(isOver))
}

private[spark] object TunnelAnswer {

  /** The answer that was packed. Another version's driver may answer something else, which ends the connection. */
  def unpack(message: Any): TunnelAnswer = message match {
    case Array(taken: Integer, bytes: Array[Byte], isOver: java.lang.Boolean) => TunnelAnswer(taken, bytes, isOver)
    case other => throw new IllegalArgumentException(s"this is not an answer: $other")
  }
}
