package dev.phalanx.spark

/** The driver's end of a job. Calls from any thread; once closed, each is an error of kind `closed`, and `close`
  * nothing.
  */
final private[spark] class Hub private (handle: Long) extends AutoCloseable {
  val address: String = Core(_.hubAddress(handle))
  val token: Array[Byte] = Core(_.hubToken(handle))

  /** The next event; `None` if none came in time. */
  def next(timeoutMillis: Long): Option[Hub.Event] =
    Option(Core(_.nextEvent(handle, timeoutMillis))).map {
      case Array("output", text)               => Hub.Output(text)
      case Array("phase", name, rank, seconds) =>
        Hub.Reached(name, Some(rank.toInt).filter(_ >= 0), seconds.toDouble)
      case Array("status", text)               => Hub.Status(text)
      case Array("report", rank, step, values) => Hub.Told(rank.toInt, Report(step.toLong, values))
      case Array("resubmit", attempt)          => Hub.Resubmit(attempt.toInt)
      case Array("finished", ranks)            => Hub.Finished(Json.ranks(Json.read(ranks)))
      case Array("failed", failure, text)      => Hub.Failed(failure, text)
      case other => throw new IllegalStateException(s"an unknown event: ${other.headOption}")
    }

  /** The file with a rank's result. */
  def resultPath(rank: Int): Option[String] = Option(Core(_.resultPath(handle, rank)))

  /** The newest whole lines of a rank's output. */
  def logs(rank: Int): String = Core(_.logs(handle, rank))

  /** What the ranks' threads are doing; `None` if no answer came in time. */
  def stacks(timeoutMillis: Long): Option[Stacks] =
    Option(Core(_.stacks(handle, timeoutMillis))).map { told =>
      val byRank = told.tail.grouped(2).map(pair => pair(0).toInt -> pair(1))
      new Stacks(byRank.toMap, told.head)
    }

  def nodeReport(report: Array[Byte]): Unit = Core(_.nodeReport(handle, report))

  def stageEnded(attempt: Int, problem: Option[String]): Unit =
    Core(_.stageEnded(handle, attempt, problem.orNull))

  def stop(reason: String): Unit = Core(_.stop(handle, reason))

  override def close(): Unit = Core(_.closeHub(handle))
}

private[spark] object Hub {
  sealed trait Event
  final case class Output(text: String) extends Event

  /** `rank` is `None` for the job's own phases. */
  final case class Reached(name: String, rank: Option[Int], seconds: Double) extends Event

  /** Where the job is, in words. */
  final case class Status(text: String) extends Event

  /** A rank reported a step. */
  final case class Told(rank: Int, report: Report) extends Event

  /** A task was lost: the stage has to be submitted again, with nodes that begin with this attempt. */
  final case class Resubmit(attempt: Int) extends Event

  /** The last event. */
  sealed trait End extends Event {
    def ranks: Seq[RankReport]
  }
  final case class Finished(ranks: Seq[RankReport]) extends End

  /** `failure` is JSON, `text` the same for people. */
  final case class Failed(failure: String, text: String) extends End {
    override def ranks: Seq[RankReport] = Json.ranks(Json.read(failure).get("ranks"))
  }

  /** Opens a hub that binds to `bind` and tells tasks to come to `advertise`. */
  def open(job: Array[Byte], bind: String, advertise: String, workDir: String): Hub =
    new Hub(Core(_.openHub(job, bind, advertise, workDir)))
}
