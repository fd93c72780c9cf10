package dev.phalanx.spark

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import dev.phalanx.spark.internal.Json

/** A training run failed. It has the fields of Python's `phalanx.TrainingError`. `getMessage` is the whole story.
  *
  * {{{
  * try new TorchDistributor(4, localMode = false, useGpu = false).run("train.py")
  * catch {
  *   case failure: TrainingException if failure.kind == "exit_code" =>
  *     println((failure.rank.get, failure.host, failure.exitCode.get))
  * }
  * }}}
  *
  * JAR-9 (never-throws): making one from the core's fields never throws. A field that is missing has its empty value.
  */
final class TrainingException private (text: String, failure: TrainingException.Fields, cause: Throwable)
    extends RuntimeException(text, cause) {

  /** The native library's constructor. */
  def this(kind: String, message: String) = this(message, TrainingException.Fields(kind, message), null)

  def this(kind: String, message: String, cause: Throwable) =
    this(message, TrainingException.Fields(kind, message), cause)

  /** `exception`, `signal`, `exit_code`, `out_of_memory`, `hang`, `lost_node`, `preempted`, `start` or `cancelled`;
    * for a call that fails in the Rust core its own kind, such as `closed` or `timeout`.
    */
  def kind: String = failure.kind

  /** The cause in one sentence. */
  def message: String = failure.message

  /** The rank that failed first; `None` where no rank did. */
  def rank: Option[Int] = failure.rank

  /** Its host; empty where no rank failed. */
  def host: String = failure.host

  /** How its process ended, where it exited. */
  def exitCode: Option[Int] = failure.exitCode

  /** The number of the signal that ended its process, where one did. */
  def signal: Option[Int] = failure.signal

  /** The class of what the training code raised, e.g. `ValueError`; empty where it raised nothing. */
  def exceptionType: String = failure.exceptionType

  /** Python's traceback; empty where the training code raised nothing. */
  def traceback: String = failure.traceback

  /** The rank's last lines of output, oldest first. */
  def lastLines: Seq[String] = failure.lastLines

  /** The file on `host` that has the rank's whole output; empty if there is none. */
  def logPath: String = failure.logPath

  /** What the ranks' threads were doing, where they hung; empty else. */
  def stacks: String = failure.stacks

  /** How often the ranks had been started again before this. */
  def restarts: Int = failure.restarts

  /** How every rank ended, and what it was doing before. */
  def ranks: Seq[RankOutcome] = failure.ranks

  /** What every rank left, by rank: those that had ended well before have their result. */
  def results: Seq[RankResult] = failure.results

  def getKind: String = kind
  def getHost: String = host
  def getExceptionType: String = exceptionType
  def getTraceback: String = traceback
  def getLogPath: String = logPath
  def getRestarts: Int = restarts
  def getStacks: String = stacks
  def getLastLines: java.util.List[String] = lastLines.asJava
  def getRanks: java.util.List[RankOutcome] = ranks.asJava
  def getResults: java.util.List[RankResult] = results.asJava

  /** As `rank`; null for `None`. */
  def getRank: Integer = rank.map(Int.box).orNull

  /** As `exitCode`; null for `None`. */
  def getExitCode: Integer = exitCode.map(Int.box).orNull

  /** As `signal`; null for `None`. */
  def getSignal: Integer = signal.map(Int.box).orNull
}

private[spark] object TrainingException {

  final case class Fields(
      kind: String,
      message: String,
      rank: Option[Int] = None,
      host: String = "",
      exitCode: Option[Int] = None,
      signal: Option[Int] = None,
      exceptionType: String = "",
      traceback: String = "",
      lastLines: Seq[String] = Vector.empty,
      logPath: String = "",
      stacks: String = "",
      restarts: Int = 0,
      ranks: Seq[RankOutcome] = Vector.empty,
      results: Seq[RankResult] = Vector.empty
  )

  /** The exception for the fields of a failure of the core; `text` is the failure as rendered there. */
  def ofFailure(
      failure: JsonNode,
      text: String,
      cause: Throwable,
      results: Seq[RankResult] = Vector.empty
  ): TrainingException = {
    def number(name: String) = Option(failure.get(name)).filter(_.isNumber).map(_.asInt())
    def words(name: String, default: String = "") = failure.path(name).asText(default)
    val lines: JsonNode = failure.path("last_lines")
    new TrainingException(
      text,
      Fields(
        kind = words("kind", "exception"),
        message = words("message", text),
        rank = number("rank"),
        host = words("host"),
        exitCode = number("exit_code"),
        signal = number("signal"),
        exceptionType = words("exception_type"),
        traceback = words("traceback"),
        lastLines = Json.texts(lines),
        logPath = words("log_path"),
        stacks = words("stacks"),
        restarts = number("restarts").getOrElse(0),
        ranks = Json.ranks(failure.get("ranks")),
        results = results
      ),
      cause
    )
  }
}
