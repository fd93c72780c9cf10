package dev.phalanx.spark.ui

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import dev.phalanx.spark.internal.Json

/** What the list of runs shows of a snapshot (`rust/types/src/run_snapshot.rs`). The core draws all of it.
  *
  * TAB-9 (reads-any): one of another version is read as far as it goes: unknown fields are ignored, and missing ones
  * empty.
  *
  * @param seconds until its end, or until the snapshot
  * @param step the newest step that a rank has reported, and of how many
  * @param cause why it failed
  */
final private[spark] case class RunSnapshot(
    name: String,
    state: String,
    seconds: Double,
    worldSize: Int,
    step: Option[(Long, Option[Long])],
    restarts: Int,
    cause: String
) {
  def over: Boolean = RunSnapshot.Over(state)
}

private[spark] object RunSnapshot {
  private val Over = Set("succeeded", "failed", "cancelled")

  /** The newest of a run; an empty one if the run has told nothing. */
  def of(run: StoredRun): RunSnapshot = of(told(run))

  def of(json: JsonNode): RunSnapshot = RunSnapshot(
    name = text(json, "name"),
    state = text(json, "state"),
    seconds = number(json, "ended").orElse(number(json, "time"))
      .fold(0.0)(until => (until - number(json, "started").getOrElse(0.0)).max(0)),
    worldSize = number(json, "world_size").fold(0)(_.toInt),
    step = each(json, "ranks").flatMap { rank =>
      number(rank, "step").map(step => step.toLong -> number(rank, "of").map(_.toLong))
    }.sortBy(_._1).lastOption,
    restarts = json.path("restarts").size,
    cause = text(json.path("failure"), "cause")
  )

  /** The newest that a run has told, with what Spark knows of it: the executors of its ranks, and that the
    * application ended before it did.
    */
  def withSparks(run: StoredRun): JsonNode = {
    val json = told(run)
    each(json, "ranks").foreach {
      case rank: ObjectNode if text(rank, "executor").isEmpty =>
        val partition = Int.box(rank.path("partition").asInt(-1))
        Option(run.executors.get(partition)).foreach(executor => rank.put("executor", executor))
      case _ => ()
    }
    json match {
      case snapshot: ObjectNode if run.cut => snapshot.put("state", Shown.cut(text(json, "state")))
      case _                               => json
    }
  }

  private def told(run: StoredRun): JsonNode = if (run.snapshot.isEmpty) Json.node() else Json.read(run.snapshot)

  private def text(json: JsonNode, name: String): String = {
    val found = json.path(name)
    if (found.isValueNode && !found.isNull) found.asText("") else ""
  }

  private def number(json: JsonNode, name: String): Option[Double] =
    Some(json.path(name)).filter(_.isNumber).map(_.asDouble())

  private def each(json: JsonNode, name: String): Seq[JsonNode] = json.path(name).elements().asScala.toVector
}
