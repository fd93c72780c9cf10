package dev.phalanx.spark.ui

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode

import dev.phalanx.spark.internal.Json

/** A run at a moment, as the core tells it (`rust/types/src/run_snapshot.rs`). Times are seconds since 1970.
  *
  * TAB-9 (reads-any): one of another version is read as far as it goes: unknown fields are ignored, and missing ones
  * empty.
  */
final private[spark] case class RunSnapshot(
    run: String,
    name: String,
    stage: String,
    state: String,
    time: Double,
    started: Double,
    ended: Option[Double],
    attempt: Int,
    worldSize: Int,
    waitsFor: String,
    phases: Seq[PhaseSpan],
    restarts: Seq[Restart],
    ranks: Seq[RankSnapshot],
    slow: Set[Int],
    lines: Seq[String],
    losses: Seq[(Double, Double)],
    failure: Option[RunFailure],
    ranksLeftOut: Int
) {
  def over: Boolean = RunSnapshot.Over(state)

  /** Until its end, or until the snapshot. */
  def seconds: Double = (ended.getOrElse(time) - started).max(0)

  /** The newest step that a rank has reported, and of how many. */
  def step: Option[(Long, Option[Long])] =
    ranks.flatMap(rank => rank.step.map(_ -> rank.of)).sortBy(_._1).lastOption
}

/** A phase of a run; the last one has no end. */
final private[spark] case class PhaseSpan(name: String, start: Double, end: Option[Double])

final private[spark] case class Restart(time: Double, cause: String)

/** A rank; shares are of its time, from 0 to 1. */
final private[spark] case class RankSnapshot(
    rank: Int,
    host: String,
    partition: Option[Int],
    executor: String,
    gpus: String,
    state: String,
    step: Option[Long],
    of: Option[Long],
    rate: Option[Double],
    collectiveShare: Option[Double],
    dataShare: Option[Double],
    values: Seq[(String, String)]
)

final private[spark] case class RunFailure(cause: String, rank: Option[Int], host: String, text: String)

private[spark] object RunSnapshot {
  private val Over = Set("succeeded", "failed", "cancelled")
  private val MostValues = 8 // of what a rank reported, in a table

  /** The newest of a run, with what Spark knows of its tasks; an empty one if the run has told nothing. */
  def of(run: StoredRun): RunSnapshot = {
    val told = read(if (run.snapshot.isEmpty) "{}" else run.snapshot)
    def executorOf(rank: RankSnapshot) = rank.partition.flatMap(at => Option(run.executors.get(Int.box(at))))
    told.copy(ranks =
      told.ranks.map(rank =>
        if (rank.executor.nonEmpty) rank else executorOf(rank).fold(rank)(executor => rank.copy(executor = executor))
      )
    )
  }

  def read(text: String): RunSnapshot = of(Json.read(text))

  def of(json: JsonNode): RunSnapshot = RunSnapshot(
    run = text(json, "run"),
    name = text(json, "name"),
    stage = text(json, "stage"),
    state = text(json, "state"),
    time = number(json, "time").getOrElse(0),
    started = number(json, "started").getOrElse(0),
    ended = number(json, "ended"),
    attempt = number(json, "attempt").fold(0)(_.toInt),
    worldSize = number(json, "world_size").fold(0)(_.toInt),
    waitsFor = text(json, "waits_for"),
    phases = each(json, "phases").map(at =>
      PhaseSpan(text(at, "name"), number(at, "start").getOrElse(0), number(at, "end"))
    ),
    restarts = each(json, "restarts").map(at => Restart(number(at, "time").getOrElse(0), text(at, "cause"))),
    ranks = each(json, "ranks").map(rankOf),
    slow = each(json, "slow").map(_.asInt(-1)).toSet,
    lines = each(json, "lines").map(_.asText("")),
    losses = each(json, "losses").collect {
      case point if point.path(0).isNumber && point.path(1).isNumber =>
        point.get(0).asDouble() -> point.get(1).asDouble()
    },
    failure = Option(json.get("failure")).filter(_.isObject).map { at =>
      RunFailure(text(at, "cause"), number(at, "rank").map(_.toInt), text(at, "host"), text(at, "text"))
    },
    ranksLeftOut = number(json, "ranks_left_out").fold(0)(_.toInt)
  )

  private def rankOf(json: JsonNode) = RankSnapshot(
    rank = number(json, "rank").fold(-1)(_.toInt),
    host = text(json, "host"),
    partition = number(json, "partition").map(_.toInt),
    executor = text(json, "executor"),
    gpus = each(json, "gpus").map(_.asText("")).mkString(", "),
    state = text(json, "state"),
    step = number(json, "step").map(_.toLong),
    of = number(json, "of").map(_.toLong),
    rate = number(json, "rate"),
    collectiveShare = number(json, "collective_share"),
    dataShare = number(json, "data_share"),
    values = json.path("values").properties().asScala.toVector
      .map(at => at.getKey -> valueOf(at.getValue)).sorted.take(MostValues)
  )

  private def valueOf(json: JsonNode) = if (json.isNumber) Shown.number(json.asDouble()) else json.asText("")

  private def text(json: JsonNode, name: String): String = {
    val found = json.path(name)
    if (found.isValueNode && !found.isNull) found.asText("") else ""
  }

  private def number(json: JsonNode, name: String): Option[Double] =
    Some(json.path(name)).filter(_.isNumber).map(_.asDouble())

  private def each(json: JsonNode, name: String): Seq[JsonNode] = json.path(name).elements().asScala.toVector
}
