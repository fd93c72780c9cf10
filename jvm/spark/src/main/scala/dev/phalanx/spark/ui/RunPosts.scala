package dev.phalanx.spark.ui

import java.util.{LinkedHashMap => JLinkedHashMap, Map => JMap}

import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.JsonNode
import org.slf4j.LoggerFactory

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.{Json, SparkInternals}
import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.metrics.RunCounts

/** Hands snapshots of runs to Spark's listener bus, from where its UI and its event log have them, and to what
  * counts.
  *
  * TAB-7 (bounded): of a run there is at most one event a second on the bus, changes of its state aside. The event
  * log gets changes of its state, and otherwise at most one event in 10 s and at most 1 KiB/s.
  *
  * TAB-8 (never-disturbs): a post never waits and never throws. What the bus has no room for is dropped.
  */
final private[spark] class RunPosts(post: RunEvent => Unit, count: JsonNode => Unit, millis: () => Long) {
  private val log = LoggerFactory.getLogger("dev.phalanx")
  private var said = false
  private val told = new JLinkedHashMap[String, RunPosts.Told] {
    override protected def removeEldestEntry(eldest: JMap.Entry[String, RunPosts.Told]): Boolean =
      size > RunStore.MostRuns
  }

  /** Posts a snapshot, the core's JSON, unless it comes too soon after the one before. */
  def offer(snapshot: String): Unit =
    try
      if (snapshot != null && snapshot.length <= RunStore.MostChars) {
        val json = Json.read(snapshot)
        val run = json.path("run").asText("")
        count(json)
        val state = Seq("state", "attempt").map(json.path(_).asText("")).mkString(" ")
        if (run.nonEmpty) due(run, state, snapshot.length).foreach(logged => post(new RunEvent(json, logged)))
      }
    catch {
      case problem @ (NonFatal(_) | _: LinkageError) =>
        if (!said) log.debug("A run's state can't be sent to Spark's UI", problem)
        said = true
    }

  /** Whether a snapshot is posted now, and whether it goes into the log. */
  private def due(run: String, state: String, size: Int): Option[Boolean] = synchronized {
    val now = millis()
    val before = told.get(run)
    val changed = before == null || before.state != state
    if (!changed && now - before.posted < RunPosts.PostMillis) None
    else {
      val logged = changed || now - before.logged >= before.restMillis
      val rest = RunPosts.LogMillis.max(size * 1000L / RunPosts.LogBytesEachSecond)
      told.put(
        run,
        if (logged) RunPosts.Told(state, now, now, rest) else before.copy(posted = now)
      )
      Some(logged)
    }
  }
}

private[spark] object RunPosts {
  private val PostMillis = 1000L
  private val LogMillis = 10000L
  private val LogBytesEachSecond = 1024L

  /** Of a run: when it was posted and logged, and how long the log then rests. */
  final private case class Told(state: String, posted: Long, logged: Long, restMillis: Long)

  private lazy val ofBus = new RunPosts(
    event => SparkInternals.post(event),
    RunCounts.told,
    () => System.nanoTime / 1000000
  )

  /** Posts a snapshot to the bus of this JVM's application, where it has one. A Python driver calls it by py4j.
    *
    * What the tab asks the run's driver in return: `stacks`, for [[answer]], or nothing.
    */
  def tell(snapshot: String): String = {
    ofBus.offer(snapshot)
    if (StacksQuestions.ofApplication.isAsked && StacksQuestions.ofApplication.take(runOf(snapshot))) "stacks"
    else ""
  }

  /** Whose snapshot it is; empty where it is none. */
  private[spark] def runOf(snapshot: String): String =
    try Json.read(snapshot).path("run").asText("")
    catch { case NonFatal(_) => "" } // as TAB-8 says

  /** The stacks of a run's ranks, or why there are none, for whoever asked. */
  def answer(run: String, stacks: String): Unit = StacksQuestions.ofApplication.answer(run, stacks)

  /** The same of a run that is over for its caller: well, or by `problem`. */
  private[spark] def tellLast(snapshot: String, problem: Option[Throwable]): Unit =
    try tell(Core(_.endedSnapshot(snapshot, problem.map(kindOf).orNull, problem.fold("")(textOf)))): Unit
    catch { case NonFatal(_) => () } // as TAB-8 says

  private def kindOf(problem: Throwable): String = problem match {
    case failure: TrainingException => failure.kind
    case _: InterruptedException    => "cancelled"
    case _                          => "start"
  }

  private def textOf(problem: Throwable): String = problem match {
    case failure: TrainingException => failure.getMessage
    case other                      => other.toString
  }
}
