package dev.phalanx.spark.driver

import java.io.RandomAccessFile
import java.nio.file.{Files, Path}

import scala.util.Using

import dev.phalanx.spark.support.PhalanxSuite
import dev.phalanx.spark.{RankOutcome, RankResult, TrainingResult}

/** What the JVM makes of a rank's file. */
class ResultFileSuite extends PhalanxSuite {

  private def result(folder: Path, contents: String): RankResult = {
    val file = Files.writeString(Files.createTempFile(folder, "rank-", ""), contents)
    new RankResult(RankOutcome(0, "h", "finished", None), Some(file.toString), null)
  }

  /** A run whose rank 0 left this many zeros. */
  private def ofZeros(folder: Path, size: Long): TrainingResult = {
    val file = folder.resolve("rank-0")
    Files.writeString(file, "bytes\n")
    Using.resource(new RandomAccessFile(file.toFile, "rw"))(_.setLength(6 + size)) // no block of it is on the disk
    val rank = new RankResult(RankOutcome(0, "h", "finished", None), Some(file.toString), null)
    new TrainingResult(Seq(rank.outcome), Seq(rank), Nil)
  }

  test("a rank's result is bytes or JSON, by its first line") {
    withFolder { folder =>
      assert(result(folder, "json\n{\"a\": 1}").json.contains("{\"a\": 1}"))
      assert(result(folder, "json\n{}").bytes.isEmpty && result(folder, "json\n{}").unavailable.isEmpty)
      assert(result(folder, "bytes\njson\n").bytes.map(new String(_)).contains("json\n"))
      assert(result(folder, "anything").bytes.map(new String(_)).contains("anything"))
      assert(result(folder, "js").bytes.map(new String(_)).contains("js") && result(folder, "").size == 0)
      val unavailable = result(folder, "unavailable\nwhy")
      assert(unavailable.unavailable.contains("why") && unavailable.bytes.isEmpty)
      assert(unavailable.stream().isEmpty && unavailable.size == 0)
    }
    assert(new TrainingResult(Nil, Nil, Nil).getResultJson == null)
  }

  test("a result that no array can hold is there as a stream, and nothing reads it before") {
    withFolder { folder =>
      val size = 3L << 30
      val result = ofZeros(folder, size)
      assert(result.toString == s"TrainingResult(1 ranks, $size bytes)" && result.results.head.size == size)
      val refused = intercept[IllegalStateException](result.resultBytes)
      assert(refused.getMessage == s"a result of $size bytes is too large for an array; read its stream", "JAR-10")
      Using.resource(result.resultStream().get) { stream =>
        assert(stream.read() == 0 && stream.skip(size - 2) == size - 2 && stream.read() == 0)
      }
    }
  }

  test("a large result is held by who asked for it, and by nobody else") {
    withFolder { folder =>
      val size = 5 << 20
      val result = ofZeros(folder, size.toLong)
      val once = result.resultBytes.get
      assert(once.length == size && !(result.resultBytes.get eq once), "JAR-10")
      assert(result.resultJson.isEmpty)
    }
  }

  test("a small result of rank 0 outlives the application, a large one says that it went") {
    withFolder { folder =>
      val file = Files.writeString(folder.resolve("rank-0"), "json\n7")
      val outcome = RankOutcome(0, "h", "finished", None)
      val kept = RankResult.keep(Seq(outcome), _ => Some(file.toString))
      Files.delete(Path.of(kept.head.path.get))
      assert(new TrainingResult(Seq(outcome), kept, Nil).resultJson.contains("7"), "JAR-10")
      val gone = ofZeros(folder, 5 << 20)
      assert(gone.results.head.size == 5 << 20)
      Files.delete(folder.resolve("rank-0"))
      val refused = intercept[IllegalStateException](gone.resultBytes)
      assert(refused.getMessage.startsWith("the results were removed when the Spark application stopped"), "JAR-6")
    }
  }
}
