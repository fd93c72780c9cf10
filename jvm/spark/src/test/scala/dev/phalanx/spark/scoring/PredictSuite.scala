package dev.phalanx.spark.scoring

import java.io.{File, IOException}
import java.nio.file.{Files, Paths}
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.sys.process.Process
import scala.util.Try
import scala.util.control.NonFatal

import com.codahale.metrics.MetricRegistry
import org.apache.spark.ml.functions.array_to_vector
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.adaptive.AdaptiveSparkPlanExec
import org.apache.spark.sql.execution.exchange.Exchange
import org.apache.spark.sql.functions.{col, udf}
import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.util.LongAccumulator
import org.apache.spark.{SparkConf, SparkException}
import org.scalatest.BeforeAndAfterAll

import dev.phalanx.spark.Predict
import dev.phalanx.spark.internal.SparkInternals
import dev.phalanx.spark.support.PhalanxSuite.{contract, rows}
import dev.phalanx.spark.support.{Cluster, PhalanxSuite}

class PredictSuite extends PhalanxSuite with BeforeAndAfterAll {
  import PredictSuite._

  override protected def deadlineSeconds: Int = 240

  private lazy val folder = Files.createTempDirectory("phalanx-test-")
  private lazy val model = {
    val file = folder.resolve("net.pt").toString
    inPython(s"""
      |import torch
      |class Net(torch.nn.Module):
      |    def forward(self, x):
      |        if bool((x == 70).any()):
      |            raise ValueError("seventy")
      |        return x.sum(1), x[:, 0].long()
      |torch.jit.script(Net()).save("$file")
      |""")
    file
  }

  private def frame: DataFrame = {
    Cluster.spark.conf.set("spark.phalanx.predict.idleTimeout", "1s")
    Cluster.spark.range(0, 100, 1, 3).selectExpr("id", "array(float(id), 0.5F) as x", "concat('row', id) as name")
  }

  test("a file of TorchScript scores rows, each once and in its place, without a Python worker") {
    val scored = Predict(frame.where("id <> 70"), model, Seq("x"), "y float, n bigint", batchSize = 8)
    assert(scored.columns.toSeq == Seq("id", "x", "name", "y", "n"))
    val rows = scored.collect()
    assert(rows.map(_.getLong(0)).toSeq == (0L until 100L).filter(_ != 70), "JAR-32")
    rows.foreach { row =>
      val id = row.getAs[Long]("id")
      assert(
        row.getAs[Float]("y") == id + 0.5f && row.getAs[Long]("n") == id && row.getAs[String]("name") == s"row$id"
      )
    }
    val operators = operatorsOf(scored.queryExecution.executedPlan)
    val ours = operators.collect { case operator: PhalanxPredictExec => operator }
    assert(ours.map(_.metrics("rows").value) == Seq(99), "SCORE-21")
    assert(ours.head.metrics("batches").value == 15 && ours.head.metrics("model").value > 0)
    assert(!operators.exists(_.nodeName.contains("Python")))
  }

  test("a vector is an array to the model") {
    val vectors = frame.where("id < 3").select(col("id"), array_to_vector(col("x").cast("array<double>")).as("v"))
    val scored = Predict(vectors, model, Seq("v"), "y double, n bigint")
    assert(scored.collect().map(_.getDouble(2)).toSeq == Seq(0.5, 1.5, 2.5))
  }

  test("only columns that are used reach the operator and come out of it") {
    val scored = Predict(frame.where("id <> 70"), model, Seq("x"), "y float, n bigint").selectExpr("n", "y + 1 as z")
    val ours = operatorsOf(scored.queryExecution.executedPlan).collect { case op: PhalanxPredictExec => op }.head
    // The array is made in the operator, of the one column that it needs.
    assert(ours.child.output.map(_.name) == Seq("id"))
    assert(ours.output.map(_.name) == Seq("n", "z"))
    assert(scored.collect().map(row => (row.getLong(0), row.getDouble(1))).toSeq ==
      (0L until 100L).filter(_ != 70).map(id => (id, id + 1.5)))
  }

  test("rows stay partitioned and sorted by the columns that come out") {
    val sorted = frame.where("id <> 70").repartition(2, col("id")).sortWithinPartitions("id")
    val scored = Predict(sorted, model, Seq("x"), "y float, n bigint")
    def exchanges(rows: DataFrame): Int = {
      val planned = rows.queryExecution.executedPlan match {
        case adaptive: AdaptiveSparkPlanExec => adaptive.initialPlan
        case plan                            => plan
      }
      assert(rows.collect().length == 99)
      planned.collect { case shuffle: Exchange => shuffle }.size
    }
    assert(exchanges(scored.groupBy("id").sum("n")) == 1)
    assert(exchanges(scored.groupBy("n").count()) == 2)
  }

  test("executors count what models have scored") {
    Predict(frame.where("id <> 70"), model, Seq("x"), "y float, n bigint").collect()
    val found = counts()
    Seq("predict.rows", "predict.batches", "predict.seconds", "predict.waiting.seconds").foreach { name =>
      assert(found.exists(_(name) > 0), s"JAR-31: $name")
    }
  }

  test("a task reads no more rows than it has in batches") {
    val read = Cluster.sc.longAccumulator
    val rows = counted(read).selectExpr("id", "array(float(id) + 100, 0.5F) as x")
    val scored = Predict(rows, model, Seq("x"), "y float, n bigint", batchSize = 10).select("id", "n")
    assert(firstOf(scored) == Seq(100L))
    assert(read.value <= 31, "JAR-33")
  }

  test("large rows that a task keeps go one batch at a time, however fast the model is") {
    val read = Cluster.sc.longAccumulator
    val rows = counted(read).select(col("id"), large(col("id")).as("large"))
      .selectExpr("id", "large", "array(float(id) + 100, 0.5F) as x")
    val scored = Predict(rows, model, Seq("x"), "y float, n bigint", batchSize = 10).select("large", "n")
    assert(rowOf(scored, 299).getLong(1) == 399)
    assert(read.value <= 330, "JAR-33")
  }

  test("a partition's memory is given back when its rows are out, however many partitions its task has") {
    val rows = Cluster.spark.range(0, 400, 1, 40).selectExpr("id", "array(float(id) + 100, 0.5F) as x")
    val scored = Predict(rows, model, Seq("x"), "y float, n bigint", batchSize = 3).select("id", "n")
    val (ids, most) = idsAndMostMemories(scored.coalesce(1))
    assert(ids == (0L until 400L), "JAR-32")
    // Two batches and two outputs, each of which the core and the task have open.
    assert(most <= 10, "JAR-34")
  }

  test("a task that ends while another thread takes its rows gives its memory back when that lets go") {
    val rows = Cluster.spark.range(0, 100000, 1, 20).selectExpr("id", "array(float(id) + 100, 0.5F) as x")
    takenByOthers(Predict(rows, model, Seq("x"), "y float, n bigint", batchSize = 3).select("id", "n"))
    eventually(assert(held().forall(_ == 0), "JAR-34"))
  }

  test("a file is copied once for all queries that use it, and what becomes of it then changes nothing") {
    val file = folder.resolve("other.pt")
    Files.copy(Paths.get(model), file)
    def copies = SparkInternals.localDir.list().count(_.startsWith("phalanx-model-"))
    val before = copies
    val first = Predict(frame.where("id = 3"), file.toString, Seq("x"), "y float, n bigint")
    val second = Predict(frame.where("id = 4"), file.toString, Seq("x"), "y float, n bigint")
    Files.write(file, Array[Byte](1, 2, 3))
    assert((first.collect() ++ second.collect()).map(_.getLong(4)).toSeq == Seq(3L, 4L), "JAR-35")
    intercept[IOException](Predict(frame, "/no/such/file.pt", Seq("x"), "y float"))
    // The same content as `model`, which has its copy.
    assert(copies <= before.max(1), "JAR-35")
  }

  test("a model that fails is an error with its traceback and the rows, or nulls where that is asked for") {
    val failed =
      intercept[SparkException](Predict(frame, model, Seq("x"), "y float, n bigint", keys = Seq("id")).collect())
    assert(failed.getMessage.contains("(id=66 to id=99) the model failed: "))
    assert(failed.getMessage.contains("seventy"))
    val rows = Predict(frame, model, Seq("x"), "y float, n bigint", onError = "null").collect()
    assert(rows.filter(_.isNullAt(3)).map(_.getLong(0)).toSeq == Seq(70L), "JAR-32")
  }

  test("what can't be is refused at once, in the words of Python") {
    def said(predict: => Any): String = intercept[IllegalArgumentException](predict).getMessage
    assert(said(Predict(frame, model, Seq("z"), "y float")) ==
      "inputs= names 'z', which is not a column: there are id, x, name")
    assert(said(Predict(frame.selectExpr("struct(id) as s"), model, Seq("s"), "y float")) ==
      "inputs= names 's', which is of type struct<id:bigint> and can't be a tensor; " +
      "cast it, or select what is in it as columns")
    assert(said(Predict(frame, model, Nil, "y float")) == "inputs= names no column")
    assert(said(Predict(frame, model, Seq("x", "x"), "y float")) == "inputs= names a column twice: x, x")
    assert(said(Predict(frame, model, Seq("x"), "y float, y int")).startsWith("outputs= names 'y', which is there"))
    val twins = frame.select(col("x"), col("x"))
    assert(said(Predict(twins, model, Seq("x"), "y float")) == "there are several columns 'x'; rename them")
    assert(said(Predict(frame, model, Seq("x"), "X float")).startsWith("outputs= names 'X', which is there already"))
    assert(said(Predict(frame, model, Seq("x"), "nothing")).startsWith("outputs='nothing' is not as"))
    assert(said(Predict(frame, model, Seq("x"), "y float", batchSize = 0)).startsWith("batchSize=0 is not a number"))
    assert(said(Predict(frame, model, Seq("x"), "y float", onError = "skip")) ==
      "onError='skip' is not one of 'raise', 'null'")
    assert(said(Predict(frame, model, Seq("x"), "y float", autocast = Some("int8"))) ==
      "autocast='int8' is not one of 'bfloat16', 'float16'")
    assert(said(Predict(
      frame,
      model,
      Seq("x"),
      "y float",
      processesPerDevice = 0
    )).startsWith("processesPerDevice=0"))
    val missing = intercept[IOException](Predict(frame, "/no/such/file.pt", Seq("x"), "y float"))
    assert(missing.getMessage == "there is no file /no/such/file.pt")
    val encrypted = new SparkConf(false).set("spark.io.encryption.enabled", "true")
    assert(intercept[IllegalStateException](Predict.checkReadable(encrypted)).getMessage
      .startsWith("Predict can't read a model that Spark encrypts"))
  }

  test("the same types can be tensors and keys as in Python") {
    Cluster.spark.conf.set("spark.sql.timeType.enabled", "true")
    try
      rows(contract("spark_types.json").path("types")).foreach { row =>
        val frame = Cluster.spark.sql(s"select 1 as x, cast(null as ${row.path("type").asText}) as c")
        for ((kind, inputs, keys) <- Seq(("tensor", Seq("c"), Nil), ("key", Seq("x"), Seq("c")))) {
          val made = Try(Predict(frame, model, inputs, "y float", keys = keys))
          assert(made.isSuccess == row.path(kind).asBoolean, s"FEED-75: $row")
          made.failed.foreach(refused => assert(refused.getMessage.contains("names 'c', which is of type ")))
        }
      }
    finally Cluster.spark.conf.unset("spark.sql.timeType.enabled")
  }

  test("bytes are read out of the pickles that Python writes, whatever their size") {
    val pickle = folder.resolve("pickle")
    for (size <- Seq(0, 1, 255, 256, 65535, 70000, 300000); protocol <- 3 to 5) {
      inPython(
        s"import pickle; open('$pickle', 'wb').write(pickle.dumps(bytes(i % 251 for i in range($size)), $protocol))"
      )
      PickledBytes.copy(pickle, folder.resolve("bytes"))
      assert(Files.readAllBytes(folder.resolve("bytes")).toSeq == Seq.tabulate(size)(i => (i % 251).toByte))
    }
    inPython(s"import pickle; open('$pickle', 'wb').write(pickle.dumps(['x']))")
    assert(intercept[IOException](PickledBytes.copy(pickle, folder.resolve("bytes"))).getMessage.contains("opcode"))
  }

  override protected def afterAll(): Unit =
    try SparkInternals.delete(folder.toFile)
    finally super.afterAll()
}

/** What executors do is here, since they have no ScalaTest. */
private object PredictSuite {

  /** What each executor has counted. */
  def counts(): Seq[Map[String, Double]] =
    Cluster.sc.parallelize(0 until 4, 4).map { _ =>
      val registry = new MetricRegistry
      ScoringCounts.register(registry)
      registry.getGauges.asScala.map { case (name, gauge) => name -> gauge.getValue.toString.toDouble }.toMap
    }.collect().toSeq

  /** Ids that are counted as they are read. */
  def counted(read: LongAccumulator): DataFrame = {
    val count = udf { (id: Long) => read.add(1); id }.asNondeterministic()
    Cluster.spark.range(0, 10000, 1, 1).select(count(col("id")).as("id"))
  }

  /** Half a megabyte, made before the model is asked. */
  val large = udf((id: Long) => Array.fill[Byte](500000)(id.toByte)).asNondeterministic()

  /** A partition's row at this place, where there is one partition; no other row is asked for after it. */
  def rowOf(rows: DataFrame, at: Int): Row = rows.rdd.mapPartitions(_.slice(at, at + 1)).collect().head

  /** The first column, and how many memories of batches there were at most while the rows came. */
  def idsAndMostMemories(rows: DataFrame): (Seq[Long], Int) = {
    val found = rows.rdd.mapPartitions(_.map(row => (row.getLong(0), memories()))).collect().toSeq
    (found.map(_._1), found.map(_._2).max)
  }

  /** How many memories of batches this JVM has open. */
  private def memories(): Int =
    new File("/proc/self/fd").list().count { fd =>
      Try(Files.readSymbolicLink(Paths.get(
        "/proc/self/fd",
        fd
      )).toString).toOption.exists(_.contains("phalanx-batch"))
    }

  /** Each task ends while another thread of it takes its rows, sooner or later. */
  def takenByOthers(rows: DataFrame): Unit = {
    val none = rows.rdd.mapPartitionsWithIndex { (number, rows) =>
      val begun = new CountDownLatch(1)
      val other = new Thread(() =>
        try rows.foreach(_ => begun.countDown())
        catch { case NonFatal(_) => () }
      )
      other.setDaemon(true)
      other.start()
      assert(begun.await(60, TimeUnit.SECONDS))
      Thread.sleep(number.toLong)
      Iterator[Int]()
    }
    assert(none.count() == 0)
  }

  /** What tasks have left at each executor: memories of batches and bytes of Arrow's. */
  def held(): Seq[Long] =
    Cluster.sc.parallelize(0 until 4, 4).map { _ =>
      val own = SparkInternals.newArrowAllocator("test")
      try memories() + own.getParentAllocator.getAllocatedMemory
      finally own.close()
    }.collect().toSeq

  /** The second column of each partition's first row; no other row is asked for. */
  def firstOf(rows: DataFrame): Seq[Long] =
    rows.rdd.mapPartitions(_.take(1)).collect().map(_.getLong(1)).toSeq

  /** Runs it as a file, since TorchScript reads the source of what it compiles. */
  def inPython(code: String): Unit = {
    val file = Files.createTempFile("phalanx-test-", ".py")
    try {
      Files.writeString(file, code.stripMargin)
      assert(Process(Seq(PhalanxSuite.python, "-W", "ignore", file.toString)).! == 0)
    } finally Files.delete(file)
  }

  def operatorsOf(plan: SparkPlan): Seq[SparkPlan] = plan match {
    case adaptive: AdaptiveSparkPlanExec => operatorsOf(adaptive.executedPlan)
    case other                           => other +: other.children.flatMap(operatorsOf)
  }
}
