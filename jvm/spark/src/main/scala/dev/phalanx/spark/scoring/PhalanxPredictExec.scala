package dev.phalanx.spark.scoring

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, AttributeSet, Expression, SortOrder}
import org.apache.spark.sql.catalyst.plans.physical.Partitioning
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.metric.{SQLMetric, SQLMetrics}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{StructField, StructType}

import dev.phalanx.spark.feeding.BlockTask
import dev.phalanx.spark.internal.SparkVersions

/** The rows of a query, and beside them what a model makes of them, which the executors' processes have.
  *
  * It mixes none of Spark's traits in: what one release has in a trait the next may have elsewhere, and only a class
  * keeps what it was compiled with.
  *
  * @param inputs what the model's inputs are, and the keys that messages name rows by, of the rows of `child`
  * @param made the struct that the model makes
  */
final private[scoring] case class PhalanxPredictExec(
    told: PredictPlan,
    packed: PackedModel,
    inputs: Seq[Expression],
    made: Attribute,
    child: SparkPlan
) extends SparkPlan {
  override def nodeName: String = "PhalanxPredict"

  override def output: Seq[Attribute] = child.output :+ made

  override def children: Seq[SparkPlan] = Seq(child)

  override def producedAttributes: AttributeSet = AttributeSet(made)

  override def outputPartitioning: Partitioning = child.outputPartitioning

  override def outputOrdering: Seq[SortOrder] = child.outputOrdering

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
    val task = new ScoringTask(told, packed, schema, inputs, child.output, output, metrics)
    child.execute().mapPartitions(task, preservesPartitioning = true)
  }

  override protected def withNewChildrenInternal(newChildren: IndexedSeq[SparkPlan]): SparkPlan =
    copy(child = newChildren.head)
}
