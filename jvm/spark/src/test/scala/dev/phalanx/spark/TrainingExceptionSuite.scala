package dev.phalanx.spark

import scala.util.Try

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.support.PhalanxSuite
import dev.phalanx.spark.support.PhalanxSuite.{contract, rows, text}

class TrainingExceptionSuite extends PhalanxSuite {
  private val failure = Json.read("""{
    "kind": "exit_code", "rank": 1, "host": "h", "message": "rank 1 (h) exited with code 3",
    "exit_code": 3, "signal": null, "exception_type": "", "traceback": "", "last_lines": ["a", "b"],
    "log_path": "/x/r1.log", "pickle": "", "stacks": "ranks 0-1:", "ranks": [
      {"rank": 0, "host": "h", "state": "stopped", "idle_seconds": 0.5, "doing": "all_reduce"},
      {"rank": 1, "host": "h", "state": "exited with code 3", "idle_seconds": null}]}""")

  test("every kind of failure becomes the exception that the table names") {
    rows(contract("errors.json").path("kinds")).foreach { row =>
      val kind = row.path("kind").asText()
      val jvm = row.path("jvm")
      val json = Json.write("kind" -> kind, "message" -> "why")
      val exception: Throwable = TrainingException.ofFailure(Json.read(json), "the whole story", null)
      assert(text(jvm, "class").contains(exception.getClass.getName), kind)
      assert(Class.forName(text(jvm, "base").get).isInstance(exception), kind)
      assert(exception.asInstanceOf[TrainingException].kind == kind)
      assert(exception.getMessage == "the whole story")
    }
  }

  test("every kind of error of the core becomes the exception that the table names") {
    rows(contract("errors.json").path("errors")).foreach { row =>
      val kind = row.path("kind").asText()
      val thrown = Try(Core(_.failForTest(kind, "why"))).failed.get
      assert(text(row.path("jvm"), "class").contains(thrown.getClass.getName), s"TYPES-3: $kind")
      assert(thrown.getMessage.endsWith("why"))
      thrown match {
        case failure: TrainingException => assert(failure.kind == kind)
        case _                          => ()
      }
    }
  }

  test("the exception and the ranks' outcomes have all fields of the table, also for Java") {
    val camel = (name: String) => "_([a-z])".r.replaceAllIn(name, _.group(1).toUpperCase)
    Seq("fields" -> classOf[TrainingException], "rank_fields" -> classOf[RankOutcome]).foreach {
      case (part, of) =>
        val methods = of.getMethods.map(_.getName).toSet
        Json.texts(contract("errors.json").path(part)).map(camel).foreach { name =>
          assert(methods(name) && methods(s"get${name.capitalize}"), s"${of.getSimpleName}.$name")
        }
    }
  }

  test("the fields are those of the core's failure") {
    val exception = TrainingException.ofFailure(failure, "text", null)
    assert(exception.rank.contains(1) && exception.host == "h")
    assert(exception.message == "rank 1 (h) exited with code 3")
    assert(exception.exitCode.contains(3) && exception.signal.isEmpty)
    assert(exception.lastLines == Seq("a", "b") && exception.logPath == "/x/r1.log")
    assert(exception.ranks.map(_.state) == Seq("stopped", "exited with code 3"))
    assert(exception.ranks.map(_.idleSeconds) == Seq(Some(0.5), None))
    assert(exception.ranks.map(_.doing) == Seq("all_reduce", "") && exception.stacks == "ranks 0-1:")
    assert(exception.getSignal == null && exception.getExitCode == 3)
  }

  test("a failure without fields still becomes an exception") {
    val exception = TrainingException.ofFailure(Json.read("{}"), "text", null)
    assert(exception.message == "text" && exception.ranks.isEmpty && exception.rank.isEmpty, "JAR-9")
  }

  test("an exception travels from executor to driver whole") {
    val exception = PhalanxSuite.travelled(TrainingException.ofFailure(failure, "text", null))
    assert(exception.getMessage == "text" && exception.rank.contains(1) && exception.ranks.length == 2)
  }
}
