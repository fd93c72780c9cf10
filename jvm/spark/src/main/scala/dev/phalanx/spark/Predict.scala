package dev.phalanx.spark

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.spark.SparkConf
import org.apache.spark.sql.functions.col
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.{Column, DataFrame, Dataset}

import dev.phalanx.spark.driver.{Preflight, PyFiles, RankOptions, RankProgram, Settings}
import dev.phalanx.spark.internal.{Json, SparkInternals, SparkVersions}
import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.scoring.{InputTypes, ModelFile, PredictPlan}

/** Scores the rows of a Dataset with a trained model, as Python's `phalanx.predict` does; `docs/predict.md` says how.
  *
  * {{{
  * val scored = Predict(df, "hdfs:///models/net.pt", inputs = Seq("features"), outputs = "probability array<float>")
  * }}}
  */
object Predict {
  private val Made = "__phalanx_outputs"
  private val Example = "\"probability array<float>, label int\""

  /** `df` with the columns that the model makes of its rows. It is lazy: the model runs when the result is used, in
    * one process for each executor, which stays for the next query. The application has to have Phalanx's plugin.
    *
    * @param model what `torch.jit.save` wrote: a local file, or the URI of one that Hadoop can read
    * @param inputs the columns that the model is given: one as a tensor, several as a dictionary by their names
    * @param outputs the names and Spark types of what the model returns: one tensor, as many as these, or a
    *   dictionary
    * @param batchSize how many rows the model is given at once, at most
    * @param nulls what stands for nulls; without it they are an error
    * @param pad what arrays of different lengths are padded with
    * @param onError `raise`, or `null`: rows with which the model fails have nulls as outputs
    * @param keys columns whose values messages about a row name
    * @param processesPerDevice how many processes with the model there are for each executor, or each GPU of one
    * @param autocast `bfloat16` or `float16`: what `torch.autocast` computes in, where it may
    *
    * Throws `IllegalArgumentException` for what can't be, `IllegalStateException` without the plugin, and
    * `java.io.IOException` for a file that can't be read. What goes wrong in a task fails the query, with the model's
    * traceback.
    */
  def apply(
      df: Dataset[_],
      model: String,
      inputs: Seq[String],
      outputs: String,
      batchSize: Int = 1024,
      nulls: Option[Double] = None,
      pad: Option[Double] = None,
      onError: String = "raise",
      keys: Seq[String] = Nil,
      processesPerDevice: Int = 1,
      autocast: Option[String] = None
  ): DataFrame = {
    val sc = df.sparkSession.sparkContext
    if (!sc.getConf.get("spark.sql.extensions", "").split(',').contains(classOf[PhalanxExtensions].getName))
      throw new IllegalStateException(
        "Predict needs Phalanx's plugin: --conf spark.plugins=dev.phalanx.spark.PhalanxPlugin"
      )
    checkReadable(sc.getConf)
    if (batchSize < 1)
      throw new IllegalArgumentException(s"batchSize=$batchSize is not a number of rows, 1 or more")
    if (processesPerDevice < 1)
      throw new IllegalArgumentException(
        s"processesPerDevice=$processesPerDevice is not a number of processes, 1 or more"
      )
    checkOneOf("onError", Some(onError), Seq("raise", "null"))
    checkOneOf("autocast", autocast, Seq("bfloat16", "float16"))
    val names = (inputs ++ keys).distinct
    Seq("inputs" -> inputs, "keys" -> keys).foreach { case (argument, asked) => check(df, argument, asked) }
    if (inputs.isEmpty) throw new IllegalArgumentException("inputs= names no column")
    val noTensor = "can't be a tensor; cast it, or select what is in it as columns"
    checkTypes(df, "inputs", inputs, InputTypes.canBeTensor, noTensor)
    checkTypes(df, "keys", keys, InputTypes.canTravel, "can't go to a model's process; cast it")
    if (inputs.distinct.size < inputs.size)
      throw new IllegalArgumentException(s"inputs= names a column twice: ${inputs.mkString(", ")}")
    val makes = outputsOf(df, outputs)
    val file = ModelFile.of(sc, model)
    val python = RankProgram.pythonOf(sc.getConf.getOption)
    val env = RankOptions(RankProgram.Python(python), PyFiles.shipped(sc), localGpus = Nil).env
    val settings = Settings.of(df.sparkSession.conf.getAll)
    val idle = Core(_.predictIdleMillis(settings)) / 1000.0
    val threads = Preflight.executorCores(sc.getConf.getOption)
    val plan = PredictPlan.ofTorchScript(
      file.key,
      Json.node().put("idle", idle).put("threads", threads).put("processes", processesPerDevice)
        .put("autocast", autocast.orNull),
      PredictPlan.rows(inputs, keys, nulls, pad, onError, makes, batchSize),
      names,
      batchSize,
      env.grouped(2).map(pair => pair(0) -> pair(1)).toMap
    )
    val kind = PredictPlan.typeOf(makes, plan)
    val none = Map.empty[String, String].asJava
    val made = SparkInternals.pythonFunction("predict", none, python, file.broadcast, kind)
      .apply(names.map(column(df, _)): _*)
    val outputsOnly = makes.fieldNames.map(name => col(s"$Made.${quoted(name)}").as(name))
    df.withColumn(Made, made).select(col("*") +: outputsOnly.toSeq: _*).drop(Made)
  }

  /** Executors' JVMs read the model from Spark's files as they are (`SparkInternals.onlyBroadcast`). */
  private[spark] def checkReadable(conf: SparkConf): Unit =
    if (conf.getBoolean("spark.io.encryption.enabled", defaultValue = false))
      throw new IllegalStateException(
        "Predict can't read a model that Spark encrypts (spark.io.encryption.enabled=true); phalanx.predict of Python can"
      )

  private def checkOneOf(argument: String, value: Option[String], known: Seq[String]): Unit =
    value.filterNot(known.contains).foreach { other =>
      val names = known.map(name => s"'$name'").mkString(", ")
      throw new IllegalArgumentException(s"$argument='$other' is not one of $names")
    }

  private def check(df: Dataset[_], argument: String, names: Seq[String]): Unit =
    names.foreach { name =>
      val count = df.columns.count(_ == name)
      if (count == 0)
        throw new IllegalArgumentException(
          s"$argument= names '$name', which is not a column: there are ${df.columns.mkString(", ")}"
        )
      if (count > 1) throw new IllegalArgumentException(s"there are several columns '$name'; rename them")
    }

  private def checkTypes(df: Dataset[_], argument: String, names: Seq[String], can: DataType => Boolean, why: String)
      : Unit =
    names.foreach { name =>
      val kind = df.schema(name).dataType
      if (!can(kind)) throw new IllegalArgumentException(
        s"$argument= names '$name', which is of type ${kind.simpleString} and $why"
      )
    }

  /** Vectors are arrays to a model. */
  private def column(df: Dataset[_], name: String): Column = {
    val column = df.col(quoted(name))
    val isOne = InputTypes.isVector(df.schema(name).dataType)
    (if (isOne) SparkVersions.vectorToArray(column).asInstanceOf[Column] else column).as(name)
  }

  private def outputsOf(df: Dataset[_], text: String): StructType = {
    val read = Try(StructType.fromDDL(text)).getOrElse(throw new IllegalArgumentException(
      s"outputs='$text' is not as $Example"
    ))
    val twice = read.fieldNames.diff(read.fieldNames.distinct)
    val there = read.fieldNames.filter(name => df.columns.exists(_.equalsIgnoreCase(name)))
    (there ++ twice).headOption.foreach { name =>
      throw new IllegalArgumentException(s"outputs= names '$name', which is there already; give it another name")
    }
    read
  }

  private def quoted(name: String): String = s"`${name.replace("`", "``")}`"
}
