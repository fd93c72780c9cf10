package dev.phalanx.spark.scoring

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.expressions.{
  Alias,
  AttributeReference,
  CreateNamedStruct,
  GetStructField,
  PythonUDF
}
import org.apache.spark.sql.catalyst.plans.logical.{ArrowEvalPython, LogicalPlan}
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan, SparkStrategy}
import org.apache.spark.sql.types.{StructField, StructType}
import org.slf4j.{Logger, LoggerFactory}

import dev.phalanx.spark.internal.{SparkFit, SparkInternals}

/** Plans the function of `phalanx.predict` as an operator that needs no Python worker. Where it doesn't know all that
  * it needs, the function is Spark's to plan.
  */
final private[spark] class PredictStrategy extends SparkStrategy {
  override def apply(plan: LogicalPlan): Seq[SparkPlan] =
    try planned(plan).toSeq
    catch {
      case problem: LinkageError =>
        PredictStrategy.logger.warn(s"${SparkFit.unlinked(problem)}; models are asked from Python workers")
        Nil
    }

  private def planned(plan: LogicalPlan): Option[SparkPlan] = plan match {
    case eval: ArrowEvalPython if eval.udfs.size == 1       => ofArrays(eval)
    case map if PredictStrategy.Maps.contains(map.nodeName) => ofRows(map)
    case _                                                  => None
  }

  /** A function of Arrow's arrays: of a struct of the inputs, which makes a struct of the outputs. */
  private def ofArrays(eval: ArrowEvalPython): Option[SparkPlan] =
    for {
      (told, packed) <- found(eval.udfs.head)
      input <- eval.udfs.head.children.headOption
    } yield {
      val inputs = input match {
        case made: CreateNamedStruct => made.valExprs
        case struct                  => told.columns.indices.map(GetStructField(struct, _))
      }
      PhalanxPredictExec(told, packed, inputs, eval.resultAttrs.head, planLater(eval.child))
    }

  /** A function of whole rows, behind which the inputs are once more: of the same rows with the outputs instead. */
  private def ofRows(map: LogicalPlan): Option[SparkPlan] =
    for {
      function <- map.expressions.collectFirst { case function: PythonUDF => function }
      (told, packed) <- found(function)
      child <- map.children.headOption
    } yield {
      val (kept, inputs) = child.output.splitAt(child.output.size - told.columns.size)
      val outputs = map.output.drop(kept.size)
      val struct = StructType(outputs.map(output => StructField(output.name, output.dataType)))
      val made = AttributeReference("outputs", struct)()
      val values = kept ++ outputs.indices.map(GetStructField(made, _))
      val named = values.zip(map.output).map { case (value, output) =>
        Alias(value, output.name)(exprId = output.exprId)
      }
      ProjectExec(named, PhalanxPredictExec(told, packed, inputs, made, planLater(child)))
    }

  /** What a function says, and the model, which is there as a broadcast of Python's. */
  private def found(function: PythonUDF): Option[(PredictPlan, PackedModel)] =
    for {
      told <- PredictPlan.of(function.dataType)
      model <- Option(SparkInternals.onlyBroadcast(function))
    } yield {
      val variables = SparkInternals.variablesOf(function).asScala.toMap
      (told, PackedModel(SparkInternals.pythonOf(function), variables, model))
    }
}

private object PredictStrategy {

  /** `mapInArrow`, by its names in Spark 3.5 and later. */
  val Maps: Set[String] = Set("PythonMapInArrow", "MapInArrow")

  val logger: Logger = LoggerFactory.getLogger("dev.phalanx")
}
