package dev.phalanx.spark.scoring

import java.util.Base64

import scala.util.Try

import com.fasterxml.jackson.databind.node.ObjectNode
import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.types.{BooleanType, DataType, Metadata, MetadataBuilder, StructField, StructType}

import dev.phalanx.spark.feeding.BlockTask
import dev.phalanx.spark.internal.{Json, SparkVersions}

/** What `phalanx.predict` says of a query: `python/phalanx/scoring/plan.py` writes it beside the function that does
  * the same in Python workers.
  *
  * @param key which model it is
  * @param told what the model's process is told, as JSON
  * @param rows what it is told of each batch of rows, as JSON, which is not read here
  * @param columns what the model's inputs, and the keys that messages name rows by, are called
  * @param batchSize how many rows the model is given at once, at most
  * @param env what the process has of variables, beside its executor's
  * @param pickled whether the model's file is a pickle of the model's bytes, as Python broadcasts it
  */
final private[spark] case class PredictPlan(
    key: String,
    told: String,
    rows: String,
    columns: Seq[String],
    batchSize: Int,
    env: Map[String, String],
    pickled: Boolean
)

private[spark] object PredictPlan {

  /** The field of the function's struct that says it, and has nothing else. */
  private val Mark = "__phalanx"

  /** The type of a function's result that says this JSON. */
  def typeOf(outputs: StructType, text: String): StructType =
    outputs.add(StructField(Mark, BooleanType, nullable = true, new MetadataBuilder().putString(Mark, text).build()))

  /** Whether this is the type of such a function's result. */
  def isMarked(result: DataType): Boolean = result match {
    case struct: StructType => struct.lastOption.exists(last => last.name == Mark && last.metadata.contains(Mark))
    case _                  => false
  }

  /** The type without what it says. */
  def plain(result: DataType): DataType = result match {
    case struct: StructType if isMarked(struct) =>
      StructType(struct.init :+ struct.last.copy(metadata = Metadata.empty))
    case other => other
  }

  /** What the type of a function's result says; none where it is no such function. */
  def of(result: DataType): Option[PredictPlan] = result match {
    case struct: StructType if isMarked(struct) => Try(read(struct.last.metadata.getString(Mark))).toOption
    case _                                      => None
  }

  /** What a model's process is told of each batch, as `whole_rows.py` reads it. */
  def rows(
      inputs: Seq[String],
      keys: Seq[String],
      nulls: Option[Double],
      pad: Option[Double],
      onError: String,
      outputs: StructType,
      batchSize: Int
  ): String = {
    val json = Json.node()
    if (inputs.size == 1) json.put("inputs", inputs.head)
    else {
      val names = json.putArray("inputs")
      inputs.foreach(name => names.add(name))
    }
    val named = json.putArray("keys")
    keys.foreach(key => named.add(key))
    nulls.fold(json.put("nulls", "error"))(json.put("nulls", _))
    pad.fold(json.putNull("pad"))(json.put("pad", _))
    json.put("on_error", onError).put("batch_size", batchSize)
    val schema = BlockTask.packed(SparkVersions.arrowSchema(outputs, "UTC", false))
    json.put("outputs", Base64.getEncoder.encodeToString(schema)).toString
  }

  /** The JSON of a query whose model is a file of TorchScript. */
  def ofTorchScript(
      key: String,
      told: ObjectNode,
      rows: String,
      columns: Seq[String],
      batchSize: Int,
      env: Map[String, String]
  ): String = {
    told.put("format", "torchscript").putArray("sys_path")
    val json = Json.node().put("key", key).put("told", told.toString).put("rows", rows)
    json.put("batch_size", batchSize).put("pickled", false)
    val names = json.putArray("columns")
    columns.foreach(name => names.add(name))
    val variables = json.putObject("env")
    env.foreach { case (name, value) => variables.put(name, value) }
    json.toString
  }

  private def read(text: String): PredictPlan = {
    val json = Json.read(text)
    val env = Map.newBuilder[String, String]
    val variables = json.path("env")
    variables.fieldNames.forEachRemaining(name => env += name -> variables.path(name).asText)
    PredictPlan(
      json.required("key").asText,
      json.required("told").asText,
      json.required("rows").asText,
      Json.texts(json.required("columns")),
      json.required("batch_size").asInt,
      env.result(),
      json.path("pickled").asBoolean(true)
    )
  }
}

/** How executors start the process of a model that Python has packed.
  *
  * @param python the program
  * @param env its variables
  * @param model Python's broadcast of the model
  */
final private[spark] case class PackedModel(python: String, env: Map[String, String], model: Broadcast[_])
