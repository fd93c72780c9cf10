package dev.phalanx.spark.scoring

import scala.jdk.CollectionConverters._

import org.apache.spark.sql.catalyst.expressions.{
  Alias,
  Attribute,
  AttributeReference,
  AttributeSet,
  Expression,
  GetStructField,
  NamedExpression,
  PythonUDF
}
import org.apache.spark.sql.catalyst.planning.PhysicalOperation
import org.apache.spark.sql.catalyst.plans.logical.{ArrowEvalPython, LogicalPlan}
import org.apache.spark.sql.execution.{ProjectExec, SparkPlan, SparkStrategy}
import org.apache.spark.sql.types.{StructField, StructType}
import org.slf4j.{Logger, LoggerFactory}

import dev.phalanx.spark.internal.{SparkFit, SparkInternals}

/** Plans the function of `phalanx.predict` as an operator that needs no Python worker. Where it doesn't know all that
  * it needs, as of a model that Spark Connect sends, the function is Spark's to plan. That takes no type that says
  * more than Arrow's, so it gets the plain one.
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
    case PhysicalOperation(wanted, Seq(), eval: ArrowEvalPython) if PredictStrategy.areColumns(wanted, eval) =>
      ofArrays(eval, wanted)
    case map if PredictStrategy.Maps.contains(map.nodeName) => ofRows(map)
    case _                                                  => None
  }

  /** Functions of Arrow's arrays, of which some may be ours: of the inputs, which makes a struct of the outputs. Each
    * of ours is an operator of its own above the others; `wanted` of all columns is what comes out.
    */
  private def ofArrays(eval: ArrowEvalPython, wanted: Seq[NamedExpression]): Option[SparkPlan] = {
    val all = eval.udfs.zip(eval.resultAttrs)
    val ours = all.filter { case (function, _) => PredictPlan.isMarked(function.dataType) }
    val operators = for {
      (function, result) <- ours
      (told, packed) <- found(function)
    } yield {
      val (inputs, inner) = PredictStrategy.inputs(function)
      val operator = PhalanxPredictExec(told, packed, inputs, result, _: Seq[NamedExpression], _: SparkPlan)
      (result, operator, inner)
    }
    val planned = operators.map(_._1.exprId).toSet
    val others = all.filterNot { case (_, result) => planned(result.exprId) } ++ operators.flatMap(_._3)
    val (functions, results) = others.map { case (function, result) =>
      val plain = PredictPlan.plain(function.dataType)
      (function.copy(dataType = plain), result.withDataType(plain))
    }.unzip
    val below = if (functions.isEmpty) eval.child else eval.copy(udfs = functions, resultAttrs = results)
    if (ours.isEmpty) None
    else if (all.size == 1 && operators.size == 1) Some(operators.head._2(wanted, planLater(below)))
    else {
      val made = operators.foldLeft(planLater(below)) { case (plan, (result, operator, _)) =>
        operator(plan.output :+ result, plan)
      }
      Some(ProjectExec(wanted, made))
    }
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
      ProjectExec(named, PhalanxPredictExec(told, packed, inputs, made, kept :+ made, planLater(child)))
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

  /** Whether these are columns from below, as they are, and values of what was made: an operator of ours can have
    * them come out, and the rest need not be copied.
    */
  def areColumns(wanted: Seq[NamedExpression], eval: ArrowEvalPython): Boolean = {
    val made = AttributeSet(eval.resultAttrs)
    wanted.forall {
      case _: Attribute => true
      case value        => value.deterministic && value.references.subsetOf(made)
    }
  }

  /** What a function of ours is given. Spark has a function right in the one of which it is the only input; then it
    * is to be computed below, as the column that comes along.
    */
  def inputs(function: PythonUDF): (Seq[Expression], Option[(PythonUDF, Attribute)]) = function.children match {
    case Seq(inner: PythonUDF) =>
      val column = AttributeReference("input", inner.dataType, inner.nullable)()
      (Seq(column), Some(inner -> column))
    case inputs => (inputs, None)
  }

  val logger: Logger = LoggerFactory.getLogger("dev.phalanx")
}
