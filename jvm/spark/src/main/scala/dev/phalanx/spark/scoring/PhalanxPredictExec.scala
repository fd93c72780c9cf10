package dev.phalanx.spark.scoring

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, Expression, NamedExpression, SortOrder}
import org.apache.spark.sql.catalyst.plans.physical.{Partitioning, UnknownPartitioning}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{StructField, StructType}

import dev.phalanx.spark.feeding.BlockTask
import dev.phalanx.spark.internal.SparkVersions

/** Columns of a query's rows, and of what a model makes of them, which the executors' processes have.
  *
  * It mixes none of Spark's traits in: what one release has in a trait the next may have elsewhere, and only a class
  * keeps what it was compiled with.
  *
  * @param inputs what the model's inputs are, and the keys that messages name rows by, of the rows of `child`
  * @param made the struct that the model makes
  * @param wanted what comes out: columns of `child`, and values made of `made`
  */
final private[scoring] case class PhalanxPredictExec(
    told: PredictPlan,
    packed: PackedModel,
    inputs: Seq[Expression],
    made: Attribute,
    wanted: Seq[NamedExpression],
    child: SparkPlan
) extends SparkPlan {
  override def nodeName: String = "PhalanxPredict"

  override def output: Seq[Attribute] = wanted.map(_.toAttribute)

  override def children: Seq[SparkPlan] = Seq(child)

  override def producedAttributes: AttributeSet = AttributeSet(made)

  /** As the rows of `child` are, as far as the columns are there that say so. */
  override def outputPartitioning: Partitioning = child.outputPartitioning match {
    case by: Expression if !by.references.subsetOf(outputSet) =>
      UnknownPartitioning(child.outputPartitioning.numPartitions)
    case other => other
  }

  override def outputOrdering: Seq[SortOrder] =
    child.outputOrdering.takeWhile(_.references.subsetOf(outputSet))

  /** The model's bytes are no part of what `explain` shows. */
  override def simpleString(maxFields: Int): String =
    s"$nodeName ${inputs.mkString("[", ", ", "]")}, ${output.mkString("[", ", ", "]")}"

  override def verboseStringWithOperatorId(): String =
    s"$formattedNodeName\nInput: ${inputs.mkString("[", ", ", "]")}\nOutput: ${output.mkString("[", ", ", "]")}\n"

  override lazy val metrics: Map[String, SQLMetric] = Map(
    "rows" -> SQLMetrics.createMetric(sparkContext, "number of output rows"),
    "batches" -> SQLMetrics.createMetric(sparkContext, "number of batches"),
    "model" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time in the model"),
    "waiting" -> SQLMetrics.createNanoTimingMetric(sparkContext, "time waiting for the model")
  )

  override protected def doExecute(): RDD[InternalRow] = {
    val columns = StructType(told.columns.zip(inputs).map { case (name, input) =>
      StructField(name, input.dataType, input.nullable)
    })
    val schema = BlockTask.packed(SparkVersions.arrowSchema(columns, SQLConf.get.sessionLocalTimeZone, false))
    val task = new ScoringTask(told, packed, schema, inputs, child.output, made, wanted, metrics)
    child.execute().mapPartitions(task, preservesPartitioning = true)
  }

  override protected def withNewChildrenInternal(newChildren: IndexedSeq[SparkPlan]): SparkPlan =
    copy(child = newChildren.head)
}
