package dev.phalanx.spark.internal

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.node.ObjectNode
import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import dev.phalanx.spark.RankOutcome

/** JSON by the Jackson that Spark brings. */
private[spark] object Json {
  private val mapper = new ObjectMapper

  /** An object without fields yet. */
  def node(): ObjectNode = mapper.createObjectNode()

  def read(text: String): JsonNode = mapper.readTree(text)

  /** Throws `ClassCastException` for what is no object. */
  def readObject(text: String): ObjectNode = mapper.readTree(text).asInstanceOf[ObjectNode]

  def read(bytes: Array[Byte]): JsonNode = mapper.readTree(bytes)

  /** An object of these fields: texts, numbers, sequences of texts. */
  def write(fields: (String, Any)*): String = {
    val node = mapper.createObjectNode()
    fields.foreach {
      case (name, value: String)  => node.put(name, value)
      case (name, value: Int)     => node.put(name, value)
      case (name, value: Long)    => node.put(name, value)
      case (name, values: Seq[_]) =>
        val array = node.putArray(name)
        values.foreach(value => array.add(value.toString))
      case (name, value) => node.put(name, value.toString)
    }
    mapper.writeValueAsString(node)
  }

  def texts(node: JsonNode): Seq[String] = node.elements().asScala.map(_.asText()).toVector

  /** The ranks' outcomes in an array of the core's; none where it isn't there. */
  def ranks(node: JsonNode): Seq[RankOutcome] =
    if (node == null) Vector.empty
    else node.elements().asScala.map(rank).toVector

  private def rank(node: JsonNode): RankOutcome = {
    val idle = node.path("idle_seconds")
    RankOutcome(
      node.path("rank").asInt(),
      node.path("host").asText(""),
      node.path("state").asText(""),
      if (idle.isNumber) Some(idle.asDouble()) else None,
      node.path("doing").asText("")
    )
  }
}
