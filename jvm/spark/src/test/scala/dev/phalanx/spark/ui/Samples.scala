package dev.phalanx.spark.ui

import java.nio.file.Files

import com.fasterxml.jackson.databind.JsonNode
import com.fasterxml.jackson.databind.node.ObjectNode

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.support.PhalanxSuite

/** Events as they are stored in event logs, and runs of any size made after them. */
object Samples {

  /** A line of an event log. */
  def line(name: String): String =
    Files.readString(PhalanxSuite.root.resolve(s"jvm/spark/src/test/resources/ui/$name")).trim

  def snapshot: ObjectNode = Json.read(line("event-v1.json")).get("snapshot").asInstanceOf[ObjectNode]

  /** The sample's run under another id, and with other fields, as JSON. */
  def run(id: String, fields: (String, String)*): ObjectNode = {
    val json = snapshot.put("run", id)
    fields.foreach { case (name, value) => json.set[JsonNode](name, Json.read(value)) }
    json
  }

  /** A run of so many ranks that goes on. */
  def large(id: String, ranks: Int): ObjectNode = {
    val json = run(id, "state" -> "\"running\"", "ended" -> "null", "failure" -> "null", "slow" -> "[7,33]")
    json.put("world_size", ranks).put("ranks_left_out", 0)
    val all = json.putArray("ranks")
    (0 until ranks).foreach { rank =>
      all.add(Json.read(
        s"""{"rank":$rank,"host":"host-${rank / 8}.cluster.example","partition":$rank,"executor":"${rank / 8}",
           |"gpus":["${rank % 8}"],"state":"running","step":${1200 - rank % 5},"of":5000,"rate":${3.5 + rank % 7 / 10.0},
           |"collective_share":${(rank % 10) / 10.0},"data_share":${(rank % 4) / 20.0},"values":{"loss":${1.0 / (1 + rank)}}}"""
          .stripMargin
      ))
    }
    json
  }

  def event(snapshot: JsonNode): RunEvent = new RunEvent(snapshot, true)
}
