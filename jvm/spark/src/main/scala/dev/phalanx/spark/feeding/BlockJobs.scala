package dev.phalanx.spark.feeding

import java.io.File
import java.util

import scala.jdk.CollectionConverters._
import scala.util.Try

import org.apache.spark.SparkContext
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.execution.QueryExecution
import org.apache.spark.sql.types.StructType
import org.apache.spark.storage.StorageLevel

import dev.phalanx.spark.driver.OwnJar
import dev.phalanx.spark.internal.{HostName, SparkInternals, SparkVersions}

/** The Spark jobs that write the blocks of data sets, and remove them, without Python workers. The Python driver
  * calls them by py4j, in a thread whose Spark properties hold for them: job group, tags, pool.
  */
object BlockJobs {

  /** What computes a DataFrame, and has each task write its partition as blocks; it starts nothing.
    *
    * @param query the DataFrame, as Spark executes it
    * @param hashed whether its last column has the rows' hashes; else the core computes them
    * @param timeZone the session's, which timestamps are said to be of
    * @param large whether text and binary have offsets of 64 bits (`spark.sql.execution.arrow.useLargeVarTypes`)
    * @param folder a path where it is kept, else the name of a folder below Spark's local directories
    * @param kept whether the files are to stay
    * @param blockBytes how many bytes a block has at most, unless one row has more
    * @param blockRows how many rows a block has at most
    * @param held the id of what [[hold]] made, to hold the executors that have blocks then; null to hold none
    */
  def writing(
      query: QueryExecution,
      hashed: Boolean,
      timeZone: String,
      large: Boolean,
      folder: String,
      kept: Boolean,
      blockBytes: Long,
      blockRows: Int,
      held: Integer
  ): BlockWriting = {
    // As the DataFrame says it: types of an optimized plan may leave out nulls inside of values.
    val all = query.analyzed.schema
    val columns = if (hashed) StructType(all.dropRight(1)) else all
    val schema = BlockTask.packed(SparkVersions.arrowSchema(columns, timeZone, large))
    val hold = Option(held).map(_.intValue)
    new BlockWriting(query, new BlockTask(schema, columns.length, hashed, folder, kept, blockBytes, blockRows, hold))
  }

  /** What holds executors, by its id: until it is unpersisted. Under dynamic allocation Spark leaves an executor
    * alone that has a block of a cached RDD, by `spark.dynamicAllocation.cachedExecutorIdleTimeout`. It is such an
    * RDD, which nobody computes: who writes a partition leaves a block of it. FEED-71 holds.
    */
  def hold(sc: SparkContext): RDD[Int] =
    sc.emptyRDD[Int].setName("Phalanx: executors with blocks").persist(StorageLevel.MEMORY_AND_DISK)

  /** Which files are there, as far as tasks get to their hosts.
    *
    * @param hosts whose disk has each file
    * @param paths where each is
    * @param tasks how many tasks look
    * @return their numbers, as a list in JSON
    */
  def present(sc: SparkContext, hosts: util.List[String], paths: util.List[String], tasks: Int): String = {
    val files = hosts.asScala.zip(paths.asScala).toVector
    OwnJar.ship(sc)
    val found = sc.parallelize(0 until tasks, tasks).flatMap { _ =>
      files.indices.filter(number => files(number)._1 == HostName.current && new File(files(number)._2).exists)
    }
    found.distinct().collect().mkString("[", ",", "]")
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

  /** Removes files and folders on the executors' hosts, as far as tasks get there.
    *
    * @param paths where there is nothing nothing happens
    * @param own the name of a folder below Spark's local directories; null for none
    * @param tasks how many tasks do it
    */
  def remove(sc: SparkContext, paths: util.List[String], own: String, tasks: Int): Unit = {
    val named = paths.asScala.toVector
    OwnJar.ship(sc)
    sc.parallelize(0 until tasks, tasks).foreach { _ =>
      val owned = Option(own).toVector.flatMap(name => SparkInternals.blockManagerDirs().map(new File(_, name)))
      val all = named.map(new File(_)) ++ owned
      all.foreach(folder => Try(SparkInternals.delete(folder)))
    }
  }
}
