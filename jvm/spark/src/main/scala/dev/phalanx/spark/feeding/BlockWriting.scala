package dev.phalanx.spark.feeding

import java.util

import scala.jdk.CollectionConverters._

import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.{QueryExecution, SQLExecution}

import dev.phalanx.spark.driver.OwnJar
import dev.phalanx.spark.internal.SparkInternals

/** Writes the partitions of one DataFrame as blocks, and some of them again where they are gone. It keeps what Spark
  * has planned and shuffled, so that a partition has the same rows each time.
  */
final class BlockWriting private[feeding] (query: QueryExecution, task: BlockTask) {

  /** The rows, once they were asked for: stages that adaptive execution plans by have run then. */
  private lazy val rows: RDD[InternalRow] = query.toRdd

  /** Has Spark compute and write all partitions but those that survive; blocks until that is done.
    *
    * Throws what Spark throws where a row can't be computed, or a block can't be written.
    *
    * @param surviving the numbers of partitions that stay as they are
    * @return in JSON, a list of an object for each partition that was written and isn't empty
    */
  def write(surviving: util.List[Integer]): String =
    SQLExecution.withNewExecutionId(query, Some("phalanx.data")) {
      val staying = surviving.asScala.map(_.intValue).toSet
      val wanted = rows.partitions.indices.filterNot(staying)
      OwnJar.ship(rows.sparkContext)
      val (job, own) = (rows.mapPartitions(task), (answers: Iterator[String]) => answers.toArray)
      rows.sparkContext.runJob(job, own, wanted).flatten.mkString("[", ",", "]")
    }

  /** Whether a partition that is computed again has the rows that it had. */
  def isSettled: Boolean = SparkInternals.isSettled(rows)
}
