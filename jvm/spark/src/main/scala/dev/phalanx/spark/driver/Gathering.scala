package dev.phalanx.spark.driver

import java.util.{ArrayDeque, Collections, LinkedHashMap => JLinkedHashMap, Map => JMap}

/** Which gang of tasks of this driver gathers: one at a time, in the order in which they came. Two that gathered
  * together could each hold half of the slots, and wait for the rest.
  */
private[spark] object Gathering {
  private val MostGivenUp = 1000

  /** As which Spark cancels a job: there is no field that says so. */
  private val AllJobs = "cancellation of all jobs"
  private val OfGroup = "cancelled job group"

  /** The first has the turn. */
  private val line = new ArrayDeque[Turn]

  /** The newest tags whose gangs are not to gather any more. */
  private val givenUp = Collections.newSetFromMap(new JLinkedHashMap[String, java.lang.Boolean] {
    override protected def removeEldestEntry(eldest: JMap.Entry[String, java.lang.Boolean]): Boolean =
      size > MostGivenUp
  })

  /** The place of a gang in the line, until it is closed: once its seats run, or it is over. */
  final class Turn private[Gathering] (val tags: Set[String], group: Option[String]) extends AutoCloseable {
    @volatile private var isCancelled = false

    /** Whether it is this gang's turn. */
    def isHeld: Boolean = line.synchronized(line.peek eq this)

    /** Whether the gang is to wait no longer. */
    def isGivenUp: Boolean = isCancelled || Gathering.isGivenUp(tags)

    /** Lets the next gang gather; again is harmless. */
    override def close(): Unit = line.synchronized(line.remove(this): Unit)

    private[Gathering] def cancelWith(said: String): Unit =
      if (said.contains(AllJobs) || group.exists(name => s"$said ".contains(s"$OfGroup $name "))) isCancelled = true
  }

  /** A place at the end of the line, for a gang whose jobs have these tags, and are of this job group. */
  def join(tags: Set[String], group: Option[String] = None): Turn = {
    val turn = new Turn(tags, group)
    line.synchronized(line.add(turn): Unit)
    turn
  }

  /** Has those gangs wait no longer that Spark would have cancelled with the one of which it says this. */
  def cancelWith(said: String): Unit = line.synchronized(line.forEach(_.cancelWith(said)))

  /** Whether it is the turn of the gang with this tag. */
  def isGathering(tag: String): Boolean = line.synchronized(Option(line.peek).exists(_.tags.contains(tag)))

  /** Has the gang whose jobs have this tag wait no longer, neither for its turn nor for slots. */
  def giveUp(tag: String): Unit = givenUp.synchronized(givenUp.add(tag): Unit)

  private def isGivenUp(tags: Set[String]): Boolean = givenUp.synchronized(tags.exists(givenUp.contains(_)))
}
