package dev.phalanx.spark.driver

import java.util.{ArrayDeque, Collections, LinkedHashMap => JLinkedHashMap, Map => JMap}

/** Which gang of tasks of this driver gathers: one at a time, in the order in which they came. Two that gathered
  * together could each hold half of the slots, and wait for the rest.
  */
private[spark] object Gathering {
  private val LeaseMillis = 30000L
  private val MostGivenUp = 1000

  /** The first has the turn. */
  private val line = new ArrayDeque[Turn]

  /** The newest tags whose gangs are not to gather any more. */
  private val givenUp = Collections.newSetFromMap(new JLinkedHashMap[String, java.lang.Boolean] {
    override protected def removeEldestEntry(eldest: JMap.Entry[String, java.lang.Boolean]): Boolean =
      size > MostGivenUp
  })

  /** The place of a gang in the line, until it is closed by whoever has it: once its seats run, or it is over.
    *
    * JAR-29 (asks-or-goes): it is a lease. Of a Python driver that ended nobody hears, so one that hasn't asked for
    * its turn for `leaseMillis` holds up no other.
    */
  final class Turn private[Gathering] (val tags: Set[String], leaseMillis: Long) extends AutoCloseable {
    private var asked = System.nanoTime
    private var isOver = false

    /** Whether it is this gang's turn. */
    def isHeld: Boolean = line.synchronized {
      asked = System.nanoTime
      if (!isOver && !line.contains(this)) line.add(this)
      while ((line.peek ne null) && line.peek.hasGone(asked)) line.poll()
      line.peek eq this
    }

    private def hasGone(now: Long): Boolean = now - asked > leaseMillis * 1000000

    /** Lets the next gang gather; again is harmless. */
    override def close(): Unit = line.synchronized {
      isOver = true
      line.remove(this): Unit
    }
  }

  /** A place at the end of the line, for a gang whose jobs have these tags. */
  def join(tags: Set[String], leaseMillis: Long = LeaseMillis): Turn = {
    val turn = new Turn(tags, leaseMillis)
    turn.isHeld
    turn
  }

  /** Whether it is the turn of the gang with this tag. */
  def isGathering(tag: String): Boolean = line.synchronized(Option(line.peek).exists(_.tags.contains(tag)))

  /** Has the gang whose jobs have this tag wait no longer, neither for its turn nor for slots. */
  def giveUp(tag: String): Unit = givenUp.synchronized(givenUp.add(tag): Unit)

  def isGivenUp(tags: Set[String]): Boolean = givenUp.synchronized(tags.exists(givenUp.contains(_)))
}
