package dev.phalanx.spark.ui

import java.util.{LinkedHashMap => JLinkedHashMap, Map => JMap}

/** Questions of the tab for the stacks of a run's ranks, and the drivers' answers.
  *
  * A page asks and goes on at once. The run's driver hears of the question when it tells its next snapshot, about
  * once a second, and answers when it can. So no thread of Spark's UI waits for a driver, and a driver that hangs
  * leaves a question without an answer.
  *
  * TAB-12 (one-at-a-time): a run has one question at most, and its driver is given it once. Who asks while one is
  * open gets its answer.
  *
  * TAB-13 (bounded): it has the newest question of `RunStore.MostRuns` runs, and of an answer `MostChars`.
  */
final private[spark] class StacksQuestions(millis: () => Long) {
  import StacksQuestions._

  private val open = new JLinkedHashMap[String, State] {
    override protected def removeEldestEntry(eldest: JMap.Entry[String, State]): Boolean = size > RunStore.MostRuns
  }

  /** Asks for the stacks of a run. */
  def ask(run: String): Unit = synchronized {
    of(run) match {
      case Some(_: Waiting) => ()
      case _                =>
        open.remove(run)
        open.put(run, Waiting(millis(), taken = false)): Unit
    }
  }

  /** Whether any driver is to answer: each asks this at every snapshot. */
  def isAsked: Boolean = synchronized {
    open.values.stream.anyMatch { case Waiting(_, taken) => !taken; case _ => false }
  }

  /** Whether the driver of a run is to answer now; true once for each question. */
  def take(run: String): Boolean = synchronized {
    of(run) match {
      case Some(waiting @ Waiting(_, false)) =>
        open.put(run, waiting.copy(taken = true))
        true
      case _ => false
    }
  }

  /** The driver's answer; one that comes too late counts, and one that nobody asked for doesn't. */
  def answer(run: String, text: String): Unit = synchronized {
    if (open.containsKey(run)) {
      val all = Option(text).getOrElse("")
      val shown = if (all.length > MostChars) all.take(MostChars) + "\n..." else all
      open.put(run, Answered(millis(), shown)): Unit
    }
  }

  /** How the newest question about a run stands. */
  def of(run: String): Option[State] = synchronized {
    Option(open.get(run)).map {
      case Waiting(since, _) if millis() - since >= PatienceMillis => Unanswered
      case state                                                   => state
    }
  }
}

private[spark] object StacksQuestions {

  /** How long an answer is waited for: the driver hears within a second, and its ranks have 5 s. */
  val PatienceMillis = 15000L
  val MostChars: Int = 256 << 10

  sealed trait State
  final case class Waiting(since: Long, taken: Boolean) extends State
  case object Unanswered extends State

  /** @param at on the clock of the questions, in milliseconds */
  final case class Answered(at: Long, text: String) extends State

  /** Those of this JVM's application. */
  val ofApplication = new StacksQuestions(() => System.currentTimeMillis)
}
