package dev.phalanx.spark.feeding

import java.io.File
import java.util

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.spark.SparkContext
import org.apache.spark.sql.execution.{QueryExecution, SQLExecution}

import dev.phalanx.spark.driver.OwnJar
import dev.phalanx.spark.internal.{SparkInternals, SparkVersions}

/** The Spark jobs that write the blocks of data sets, and remove them, without Python workers. The Python driver
  * calls them by py4j, in a thread whose Spark properties hold for them: job group, tags, pool.
  */
object BlockJobs {

  /** Computes a DataFrame, and has each task write its partition as blocks; blocks until that is done.
    *
    * Throws what Spark throws where a row can't be computed, or a block can't be written.
    *
    * @param query the DataFrame, as Spark executes it
    * @param timeZone the session's, which timestamps are said to be of
    * @param large whether text and binary have offsets of 64 bits (`spark.sql.execution.arrow.useLargeVarTypes`)
    * @param folder a path where it is kept, else the name of a folder below Spark's local directories
    * @param kept whether the files are to stay
    * @param blockBytes how many bytes a block has at most, unless one row has more
    * @param blockRows how many rows a block has at most
    * @return in JSON, a list of an object for each partition that isn't empty
    */
  def write(
      query: QueryExecution,
      timeZone: String,
      large: Boolean,
      folder: String,
      kept: Boolean,
      blockBytes: Long,
      blockRows: Int
  ): String = {
    val schema = SparkVersions.arrowSchema(query.executedPlan.schema, timeZone, large)
    val task = new BlockTask(BlockTask.packed(schema), folder, kept, blockBytes, blockRows)
    SQLExecution.withNewExecutionId(query, Some("phalanx.data")) {
      val rows = query.toRdd
      OwnJar.ship(rows.sparkContext)
      rows.mapPartitions(task).collect().mkString("[", ",", "]")
    }
  }

  /** Has carriers serve the blocks of hosts where a run has no node; blocks until none is needed any more.
    *
    * @param spec what the hub tells every node
    * @param first the number of the first carrier
    * @param wanted the names of the hosts
    * @param tasks how many tasks there are: as many as there are slots
    */
  def carry(sc: SparkContext, spec: Array[Byte], first: Int, wanted: util.List[String], tasks: Int): Unit = {
    val task = new CarrierTask(spec, first, wanted.asScala.toSet)
    OwnJar.ship(sc)
    sc.parallelize(0 until tasks, tasks).foreachPartition(task)
  }

  /** Removes folders on the executors' hosts, as far as tasks get there.
    *
    * @param folders paths; where there is none nothing happens
    * @param own the name of a folder below Spark's local directories
    * @param tasks how many tasks do it
    */
  def remove(sc: SparkContext, folders: util.List[String], own: String, tasks: Int): Unit = {
    val paths = folders.asScala.toVector
    OwnJar.ship(sc)
    sc.parallelize(0 until tasks, tasks).foreach { _ =>
      val all = paths.map(new File(_)) ++ SparkInternals.blockManagerDirs().map(new File(_, own))
      all.foreach(folder => Try(SparkInternals.delete(folder)))
    }
  }
}
