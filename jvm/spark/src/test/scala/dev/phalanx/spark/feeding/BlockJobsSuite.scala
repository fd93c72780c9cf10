package dev.phalanx.spark.feeding

import java.io.ByteArrayInputStream
import java.nio.file.attribute.PosixFilePermissions
import java.nio.file.{Files, Path, Paths}
import java.util
import java.util.zip.CRC32

import scala.jdk.CollectionConverters._
import scala.util.Using

import com.fasterxml.jackson.databind.JsonNode
import org.apache.arrow.memory.RootAllocator
import org.apache.arrow.vector.VectorSchemaRoot
import org.apache.arrow.vector.ipc.ArrowStreamReader
import org.apache.arrow.vector.types.pojo.Schema
import org.apache.spark.SparkException
import org.apache.spark.sql.DataFrame
import org.apache.spark.sql.classic.Dataset
import org.apache.spark.sql.execution.QueryExecution
import org.apache.spark.sql.execution.arrow.ArrowWriter

import dev.phalanx.spark.internal.{HostName, Json, SparkVersions}
import dev.phalanx.spark.support.{Cluster, PhalanxSuite, Whole}

class BlockJobsSuite extends PhalanxSuite {
  import BlockJobsSuite._

  private lazy val allocator = new RootAllocator

  // Another is in tests/data/test_block_jobs.py.
  test("values of every type, nulls among them, are as Spark's own writer has them", Whole) {
    for (rows <- Seq(EveryType, EveryType.where("id % 3 > 0"), Dense)) {
      val (schema, expected) = asSparkHas(rows)
      val found = blocksOf(write(rows.repartition(1).sortWithinPartitions("id"), blockRows = 100)).map(read)
      assert(found.map(_._1).toSet == Set(schema), "FEED-59")
      assert(found.flatMap(_._2) == expected, "FEED-59")
    }
    assert(allocator.getAllocatedMemory == 0)
  }

  test("what is told of a block is what it has") {
    val rows = Cluster.spark.range(0, 40, 1, 1).selectExpr(
      "if(id = 3, null, id) as n",
      "if(id < 2, null, transform(sequence(1, int(id % 4) + 1), i -> if(i = 4, null, float(i)))) as a",
      "array(array(id), array(id, null)) as b",
      "cast(null as array<int>) as c"
    )
    val part = write(rows).head
    assert(part.get("host").asText() == HostName.current)
    val block = part.get("blocks").get(0)
    assert(part.get("blocks").size == 1)
    assert(block.get("rows").asInt() == 40)
    assert(block.get("facts") == Json.read(
      """{"nulls": {"n": 1, "a": 2, "a[]": 10, "b[]": 40, "c": 40},
        | "lengths": {"a": [[1, 4]], "b": [[2, 2], [1, 2]], "c": [[-1, -1]]}}""".stripMargin
    ))
  }

  test("blocks are bounded, aligned and whole, and empty partitions have none") {
    val texts = "if(id = 500, repeat('x', 100000), 'abcdefgh') as text"
    val rows = Cluster.spark.range(0, 1000, 1, 4).where("id < 250 or id >= 500").selectExpr("id", texts)
    val parts = write(rows, blockBytes = 2000)
    assert(parts.map(_.get("partition").asInt()) == Seq(0, 2, 3))
    val files = parts.map(part => Paths.get(part.get("path").asText()))
    assert(
      files.map(file => PosixFilePermissions.toString(Files.getPosixFilePermissions(file.getParent))).toSet ==
        Set("rwx------"),
      "FEED-61"
    )
    val blocks = blocksOf(parts)
    assert(blocks.flatMap(read(_)._2.map(_.head)) == ((0L until 250L) ++ (500L until 1000L)), "FEED-59")
    val large = blocks.filter(_.node.get("bytes").asLong() > 4000)
    assert(large.map(_.node.get("rows").asInt()) == Seq(1), "FEED-60")
    assert(blocks.forall(_.node.get("start").asLong() % 64 == 0))
    assert(blocks.forall(block => block.node.get("checksum").asLong() == block.checksum))
    assert(blocksOf(write(rows, blockRows = 30)).map(_.node.get("rows").asInt()).max == 30, "FEED-60")
    assert(write(rows.where("id < 0")).isEmpty)
    BlockJobs.remove(Cluster.sc, util.List.of(), Folder, 4)
    assert(!files.exists(Files.exists(_)))
  }

  test("the hashes of a block's rows are summed, be they Spark's or the core's, and no block has them") {
    val rows = Cluster.spark.range(0, 5000, 1, 2).selectExpr("id", "if(id % 7 = 3, null, string(id)) as text")
    for (hashed <- Seq(true, false)) {
      val blocks = blocksOf(partsOf(writing(rows, blockRows = 700, hashed = hashed).write(util.List.of())))
      assertSummed(rows, blocks)
    }
  }

  private def assertSummed(rows: DataFrame, blocks: Seq[Found]): Unit = {
    val hashes = rows.selectExpr(Hash).collect().map(_.getLong(0)).iterator
    for (block <- blocks) {
      val own = hashes.take(block.node.get("rows").asInt()).toVector
      assert(block.node.get("content").asLong() == own.sum, "FEED-66")
      val prime = BigInt(RowSums.Prime)
      val unsigned = own.map(hash => if (hash < 0) BigInt(hash) + (BigInt(1) << 64) else BigInt(hash))
      val polynomial = unsigned.foldLeft(BigInt(0))((sum, hash) => (sum * RowSums.Base + hash) % prime)
      assert(BigInt(block.node.get("sequence").asLong()) == polynomial, "FEED-66")
      assert(read(block)._2.head.size == 2, "FEED-66")
    }
    assert(hashes.isEmpty)
    ()
  }

  test("partitions that survive are not written again, and what was shuffled is kept") {
    val rows = Cluster.spark.range(0, 1000, 1, 4).toDF("id").repartition(6)
    val job = writing(rows)
    val all = partsOf(job.write(util.List.of()))
    val some = partsOf(job.write(Seq(0, 2, 3, 5).map(Int.box).asJava))
    assert(job.isSettled)
    assert(all.map(_.get("partition").asInt()) == (0 until 6))
    assert(some.map(_.get("partition").asInt()) == Seq(1, 4), "FEED-67")
    for (part <- some) {
      def sums(parts: Seq[JsonNode]) =
        blocksOf(parts.filter(_.get("partition") == part.get("partition"))).map(_.node.get("content"))
      assert(sums(some) == sums(all), "FEED-67")
    }
    val files = (all ++ some).map(part => part.get("path").asText())
    val hosts = files.map(_ => HostName.current)
    val told = BlockJobs.present(Cluster.sc, (hosts :+ "elsewhere").asJava, (files :+ files.head).asJava, 4)
    assert(Json.read(told).elements().asScala.map(_.asInt()).toSet == files.indices.toSet)
    BlockJobs.remove(Cluster.sc, files.asJava, null, 4)
    assert(BlockJobs.present(Cluster.sc, hosts.asJava, files.asJava, 4) == "[]")
  }

  test("who writes blocks leaves a block of the RDD that holds executors, until it is unpersisted") {
    val hold = BlockJobs.hold(Cluster.sc)
    assert(Cluster.sc.getPersistentRDDs.contains(hold.id), "FEED-71")
    val rows = Cluster.spark.range(0, 90, 1, 3).where("id < 30 or id >= 60").toDF("id")
    def there = (0 until 3).filter(CachedBlocks.isThere(hold.id, _)).toSet
    writing(rows).write(util.List.of())
    assert(there.isEmpty)
    val job = writing(rows, held = hold.id)
    assert(partsOf(job.write(Seq(2).map(Int.box).asJava)).map(_.get("partition").asInt()) == Seq(0))
    assert(there == Set(0), "FEED-71: an empty partition holds nobody")
    job.write(Seq(0).map(Int.box).asJava)
    assert(there == Set(0, 2), "FEED-71")
    hold.unpersist(blocking = true)
    assert(there.isEmpty && !Cluster.sc.getPersistentRDDs.contains(hold.id), "FEED-71")
    BlockJobs.remove(Cluster.sc, util.List.of(), Folder, 4)
  }

  test("a row that can't be computed is told, and leaves no file of its partition") {
    withFolder { folder =>
      val rows = Cluster.spark.range(0, 300, 1, 3)
        .selectExpr("if(id < 299, id, raise_error('no such number')) as id")
      val told = intercept[Exception](write(rows, folder.resolve("kept").toString, kept = true))
      assert(told.getMessage.contains("no such number"))
      val left = Files.list(folder.resolve("kept")).iterator.asScala.map(_.getFileName.toString).toSeq
      assert(left.map(_.takeWhile(_ != '-')).sorted == Seq("0", "1"), "FEED-61")
    }
  }

  test("a place where nothing can be written is named") {
    withFolder { folder =>
      val file = Files.createFile(folder.resolve("file"))
      val told = intercept[SparkException](write(EveryType, s"$file/kept", kept = true))
      assert(told.getMessage.contains(s"$file/kept/") && told.getMessage.contains("can't be written"))
    }
  }

  test("what is kept is where it should be, and any user may read it") {
    withFolder { folder =>
      val parts = write(EveryType, s"$folder/a/b", kept = true)
      val files = parts.map(part => Paths.get(part.get("path").asText()))
      assert(files.forall(_.getParent == folder.resolve("a/b")))
      assert(Files.getPosixFilePermissions(folder.resolve("a/b")).size > 3)
      BlockJobs.remove(Cluster.sc, util.List.of(s"$folder/a"), Folder, 1)
      assert(!Files.exists(folder.resolve("a")))
    }
  }

  private case class Found(path: Path, node: JsonNode) {
    lazy val bytes: Array[Byte] = {
      val start = node.get("start").asInt()
      util.Arrays.copyOfRange(Files.readAllBytes(path), start, start + node.get("bytes").asInt())
    }

    def checksum: Long = {
      val sum = new CRC32
      sum.update(bytes)
      sum.getValue
    }
  }

  private def blocksOf(parts: Seq[JsonNode]): Seq[Found] =
    parts.flatMap { part =>
      val path = Paths.get(part.get("path").asText())
      part.get("blocks").elements().asScala.map(Found(path, _))
    }

  /** The schema of a block, and its rows. */
  private def read(block: Found): (Schema, Seq[Seq[Any]]) =
    Using.resource(new ArrowStreamReader(new ByteArrayInputStream(block.bytes), allocator)) { reader =>
      assert(reader.loadNextBatch())
      val found = (reader.getVectorSchemaRoot.getSchema, rowsOf(reader.getVectorSchemaRoot))
      assert(!reader.loadNextBatch(), "a block is one record batch")
      found
    }

  /** The same of a DataFrame that Spark's own writer brings to Arrow. */
  private def asSparkHas(frame: DataFrame): (Schema, Seq[Seq[Any]]) = {
    val query = executed(frame.repartition(1).sortWithinPartitions("id"))
    val schema = SparkVersions.arrowSchema(query.executedPlan.schema, Zone, false)
    Using.resource(VectorSchemaRoot.create(schema, allocator)) { root =>
      val writer = ArrowWriter.create(root)
      query.executedPlan.executeCollect().foreach(writer.write)
      writer.finish()
      (schema, rowsOf(root))
    }
  }
}

object BlockJobsSuite {
  private val Folder = "phalanx-data-test"
  private val Zone = "Europe/Oslo"

  private lazy val EveryType: DataFrame = Cluster.spark.range(0, 333, 1, 3).selectExpr(
    Seq("tinyint", "smallint", "int", "float", "double", "boolean", "decimal(9,2)", "string")
      .map(kind => s"if(id % 7 = 1, null, cast(id % 100 - 50 as $kind)) as `${kind}_`") ++ Seq(
      "id",
      "if(id % 7 = 2, null, date_add(date'1970-01-01', int(id))) as day",
      "if(id % 7 = 3, null, timestamp_micros(id - 20)) as time",
      "cast(timestamp_micros(id) as timestamp_ntz) as ntz",
      "if(id % 7 = 4, null, make_dt_interval(0, 0, 0, id)) as span",
      "if(id % 5 = 0, null, cast(id - 20 as decimal(38,3)) * 12345678901234567890) as wide",
      "if(id % 5 = 1, null, unhex(hex(id))) as raw",
      "if(id % 5 = 2, null, transform(sequence(0, int(id % 5)), i -> if(i = 3, null, float(i)))) as ragged",
      "array(double(id), 1.5D) as pair",
      "array(id % 2 = 0, true, null) as flags",
      "transform(sequence(0, int(id % 3)), i -> transform(sequence(0, i), j -> smallint(j))) as deep",
      "array(string(id), null, '') as texts",
      "if(id % 5 = 3, null, named_struct('a', id, 'b', named_struct('c', string(id), 'd', array(id)))) as s",
      "if(id % 5 = 4, null, map(id, array(id), id + 1, null)) as m",
      "array(named_struct('e', id), null) as structs"
    ): _*
  )

  /** Without a null, and with an array as long as a row may be here. */
  private lazy val Dense: DataFrame = Cluster.spark.range(0, 300, 1, 3).selectExpr(
    "id",
    "float(id) as x",
    "transform(sequence(0, 2000), i -> float(i) / (id + 1)) as a",
    "cast(array() as array<int>) as none",
    "id % 2 = 0 as flag"
  )

  private def executed(frame: DataFrame): QueryExecution = frame.asInstanceOf[Dataset[_]].queryExecution

  private def write(
      frame: DataFrame,
      folder: String = Folder,
      kept: Boolean = false,
      blockBytes: Long = 1L << 24,
      blockRows: Int = 1 << 20
  ): Seq[JsonNode] =
    partsOf(writing(frame, folder, kept, blockBytes, blockRows).write(util.List.of()))

  /** What writes a DataFrame; where it is `hashed` a hash of each row is behind its columns. */
  private def writing(
      frame: DataFrame,
      folder: String = Folder,
      kept: Boolean = false,
      blockBytes: Long = 1L << 24,
      blockRows: Int = 1 << 20,
      hashed: Boolean = false,
      held: Integer = null
  ): BlockWriting = {
    val rows = if (hashed) frame.selectExpr("*", s"$Hash as hash") else frame
    BlockJobs.writing(executed(rows), hashed, Zone, false, folder, kept, blockBytes, blockRows, held)
  }

  /** As `feeding/blocks/row_hash.py` has it, of columns `id` and `text`. */
  private val Hash = "xxhash64(id, text, if(id is null, 1L, 0L) + if(text is null, 2L, 0L))"

  private def partsOf(answer: String): Seq[JsonNode] = Json.read(answer).elements().asScala.toVector

  private def rowsOf(root: VectorSchemaRoot): Seq[Seq[Any]] = {
    val vectors = root.getFieldVectors.asScala.toVector
    Vector.tabulate(root.getRowCount)(row => vectors.map(vector => comparable(vector.getObject(row))))
  }

  private def comparable(value: Any): Any = value match {
    case bytes: Array[Byte]                                              => bytes.toSeq
    case nan: Float if nan.isNaN                                         => "NaN"
    case text if text != null && text.getClass.getName.endsWith(".Text") => text.toString
    case list: util.List[_]                                              => list.asScala.map(comparable).toVector
    case map: util.Map[_, _] => map.asScala.map { case (key, one) => key -> comparable(one) }.toMap
    case other               => other
  }
}
