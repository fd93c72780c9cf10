package dev.phalanx.spark.driver

import java.util.{ArrayDeque, Collections, LinkedHashMap => JLinkedHashMap, Map => JMap}

/** Which gang of tasks of this driver gathers: one at a time, in the order in which they came. Two that gathered
  * together could each hold half of the slots, and wait for the rest.
  */
private[spark] object Gathering {
  private val PollMillis = 100L
  private val MostGivenUp = 1000

  /** The first has the turn. */
  private val line = new ArrayDeque[Turn]

  /** The newest tags whose gangs are not to gather any more. */
  private val givenUp = Collections.newSetFromMap(new JLinkedHashMap[String, java.lang.Boolean] {
    override protected def removeEldestEntry(eldest: JMap.Entry[String, java.lang.Boolean]): Boolean =
      size > MostGivenUp
  })

  /** The turn of a gang. Whoever has it closes it, once its seats run or the gang is over; any thread may. */
  final class Turn private[Gathering] () extends AutoCloseable {

    /** Lets the next gang gather; a turn that is over stays so. */
    override def close(): Unit = line.synchronized {
      line.remove(this)
      line.notifyAll()
    }

    def isHeld: Boolean = line.synchronized(line.peek eq this)
  }

  /** Waits for the turn, for as long as the caller `mayWait`; `None` if it hasn't come by then. Throws
    * `InterruptedException`.
    */
  def enter(mayWait: () => Boolean): Option[Turn] = line.synchronized {
    val turn = new Turn
    var has = false
    line.add(turn)
    try {
      while (!turn.isHeld && mayWait()) line.wait(PollMillis)
      has = turn.isHeld
    } finally if (!has) turn.close()
    Some(turn).filter(_ => has)
  }

  /** Has the gang whose jobs have this tag wait no longer, neither for its turn nor for slots. */
  def giveUp(tag: String): Unit = givenUp.synchronized(givenUp.add(tag): Unit)

  def isGivenUp(tags: Set[String]): Boolean = givenUp.synchronized(tags.exists(givenUp.contains(_)))
}
