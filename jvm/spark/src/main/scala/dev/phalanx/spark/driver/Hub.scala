package dev.phalanx.spark.driver

import com.fasterxml.jackson.databind.JsonNode

import dev.phalanx.spark.internal.{Json, OnceUnused}
import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.{RankOutcome, Report, Stacks}

/** The driver's end of a job. Any thread may call it. Once it is closed, `close` does nothing, `logs` go on as
  * BINDING-1 says, for as long as anything refers to this, and each other call is an error of kind `closed`.
  */
final private[spark] class Hub private (private[spark] val handle: Long) extends AutoCloseable {

  /** What the nodes of an attempt are told; opaque, and has the job's secret in it. */
  def nodeSpec(attempt: Int, ranks: RankOptions): Array[Byte] = {
    val (python, command) = ranks.program match {
      case RankProgram.Python(exec)  => (exec, Nil)
      case RankProgram.Command(line) => (null, line)
    }
    Core(_.nodeSpec(handle, attempt, python, command.toArray, ranks.env, ranks.localGpus.toArray))
  }

  /** The next event; `None` if none came in time. */
  def next(timeoutMillis: Long): Option[Hub.Event] =
    Option(Core(_.nextEvent(handle, timeoutMillis))).map(Hub.eventOf)

  /** The file with a rank's result. */
  def resultPath(rank: Int): Option[String] = Option(Core(_.resultPath(handle, rank)))

  /** The newest whole lines of a rank's output. */
  def logs(rank: Int): String = Core(_.logs(handle, rank))

  /** The run now, as JSON. */
  def snapshot: String = Core(_.snapshot(handle))

  /** What the ranks' threads are doing; `None` if no answer came in time. */
  def stacks(timeoutMillis: Long): Option[Stacks] =
    Option(Core(_.stacks(handle, timeoutMillis))).map { told =>
      val byRank = told.tail.grouped(2).map(pair => pair(0).toInt -> pair(1))
      new Stacks(byRank.toMap, told.head)
    }

  def stageEnded(attempt: Int, problem: Option[String]): Unit =
    Core(_.stageEnded(handle, attempt, problem.orNull))

  /** What Spark shows of the stage that was submitted for `attempt`. */
  def stageSeen(attempt: Int, look: StageLook): Unit = {
    Core(_.stageSeen(handle, attempt, look.running.getOrElse(-1), look.slots, look.free))
    if (look.leaving.nonEmpty) Core(_.decommissioned(handle, look.leaving.toArray))
  }

  def stop(reason: String): Unit = Core(_.stop(handle, reason))

  override def close(): Unit = Core(_.closeHub(handle))
}

private[spark] object Hub {
  sealed trait Event
  final case class Output(text: String) extends Event

  /** `rank` is `None` for the job's own phases. */
  final case class PhaseReached(name: String, rank: Option[Int], seconds: Double) extends Event

  /** Where the job is, in words. */
  final case class Status(text: String) extends Event

  /** A rank reported a step. */
  final case class Reported(rank: Int, report: Report) extends Event

  /** All ranks run again after a restart. What that has cost is in the snapshot. */
  case object Restarted extends Event

  /** A task was lost: the stage has to be submitted again, with nodes that begin with this attempt. */
  final case class Resubmit(attempt: Int) extends Event

  /** The seat of a partition is to be submitted once more, in the gang that was submitted for this attempt. */
  final case class SeatWanted(attempt: Int, partition: Int) extends Event

  /** The job of this stage of Spark's has the seat of a partition: the others of that partition are to end. */
  final case class SeatTaken(attempt: Int, partition: Int, stage: Int) extends Event

  /** The last event. */
  sealed trait Outcome extends Event {
    def ranks: Seq[RankOutcome]
  }
  final case class Finished(ranks: Seq[RankOutcome]) extends Outcome

  /** `failure` has the fields of the core's failure, `text` is the same for people. */
  final case class Failed(failure: JsonNode, text: String) extends Outcome {
    override def ranks: Seq[RankOutcome] = Json.ranks(failure.get("ranks"))
  }

  /** An event of the core: its kind, a text, and its fields as JSON. The one place where these are read. */
  private[driver] def eventOf(packed: Array[String]): Event = {
    val (kind, text, json) = (packed(0), packed(1), packed(2))
    lazy val fields = Json.read(json)
    kind match {
      case "output" => Output(text)
      case "phase"  =>
        val rank = fields.get("rank")
        PhaseReached(text, if (rank.isNull) None else Some(rank.asInt()), fields.get("seconds").asDouble())
      case "status"      => Status(text)
      case "progress"    => Reported(fields.get("rank").asInt(), Report(fields.get("step").asLong(), text))
      case "restarted"   => Restarted
      case "resubmit"    => Resubmit(fields.get("attempt").asInt())
      case "seat_wanted" => SeatWanted(fields.get("attempt").asInt(), fields.get("partition").asInt())
      case "seat_taken"  =>
        SeatTaken(fields.get("attempt").asInt(), fields.get("partition").asInt(), fields.get("stage").asInt())
      case "finished" => Finished(Json.ranks(fields.get("ranks")))
      case "failed"   => Failed(fields, text)
      case other      => throw new IllegalStateException(s"an unknown event: $other")
    }
  }

  /** Opens a hub that binds to `bind` and tells tasks to come to `advertise`. */
  def open(job: Job, bind: String, advertise: String, workDir: String): Hub = {
    val handle = Core(_.openHub(job.packed, bind, advertise, workDir))
    val hub = new Hub(handle)
    OnceUnused(hub)(Core(_.dropLogs(handle)))
    hub
  }
}
