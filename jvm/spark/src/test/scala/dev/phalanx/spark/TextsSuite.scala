package dev.phalanx.spark

import org.apache.spark.SparkException

/** Small functions from texts to texts. */
class TextsSuite extends PhalanxSuite {

  test("a host is found in every form of address that Spark has") {
    assert(NodeTask.hostOf("node7:4000") == "node7")
    assert(NodeTask.hostOf("10.0.0.7:4000") == "10.0.0.7")
    assert(NodeTask.hostOf("[fe80::1]:4000") == "fe80::1")
    assert(NodeTask.hostOf("fe80::1") == "fe80::1")
    assert(NodeTask.hostOf("[fe80::1]") == "fe80::1")
    assert(NodeTask.hostOf("localhost") == "localhost")
  }

  test("a rank's environment is a PySpark worker's, and says where Spark's files are") {
    val variables = RankEnvironment
      .variables(
        Map("PYTHONPATH" -> "/app", "A" -> "1"),
        Seq("a.zip", "b.egg"),
        Map("PYTHONPATH" -> "/executor").get,
        "./files",
        "/spark/pyspark.zip"
      )
      .grouped(2)
      .map(pair => pair(0) -> pair(1))
      .toMap
    assert(variables("PYTHONPATH") == "/spark/pyspark.zip:/app:/executor", "ENV-2")
    assert(variables("PHALANX_PY_FILES") == "a.zip:b.egg", "ENV-1")
    assert(variables("PHALANX_SPARK_FILES") == s"${sys.props("user.dir")}/files", "ENV-1")
    assert(variables("A") == "1")
  }

  test("the ranks' Python is chosen by PySpark's rules") {
    val set = Map("spark.pyspark.python" -> "/a/python")
    assert(RankProgram.pythonOf(set.get, Map("PYSPARK_PYTHON" -> "/b/python").get) == "/a/python")
    assert(RankProgram.pythonOf(_ => None, Map("PYSPARK_PYTHON" -> "/b/python").get) == "/b/python")
    assert(RankProgram.pythonOf(_ => None, _ => None) == "python3")
  }

  test("a stage's failure is explained by what the task threw") {
    val aborted = "Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. " +
      "Most recent failure reason: Stage failed because barrier task ResultTask(0, 1) finished unsuccessfully.\n"
    def explained(text: String) = StageFailure.explain(new RuntimeException(text))
    assert(
      explained(aborted + "dev.phalanx.spark.TrainingException: no library\n\tat a.b(C.scala:1)") == "no library"
    )
    assert(explained(aborted + "java.lang.OutOfMemoryError: heap") == "OutOfMemoryError: heap")
    val lost = "ExecutorLostFailure (executor 1 exited) Reason: Command exited with code 137"
    assert(explained(aborted + lost) == lost)
    assert(explained("Job 3 cancelled part of cancelled job group mine").startsWith("Job 3 cancelled"))
    assert(explained("x" * 900).length == 503)
    assert(StageFailure.explain(new RuntimeException) == "java.lang.RuntimeException")
  }

  test("a cancelled Spark job is a cancellation, anything else is not") {
    val cancelled = new SparkException("SPARK_JOB_CANCELLED", Map("jobId" -> "1", "reason" -> "x"), null)
    assert(StageFailure.isCancellation(cancelled))
    assert(StageFailure.isCancellation(new RuntimeException(cancelled)))
    assert(!StageFailure.isCancellation(new SparkException("no")))
  }

  test("only Phalanx's settings reach the core") {
    val pairs = Seq("spark.phalanx.grace" -> "1s", "spark.app.name" -> "x", "spark.phalanx.a" -> "b")
    assert(Settings.of(pairs).toSeq == Seq("spark.phalanx.a", "b", "spark.phalanx.grace", "1s"))
  }

  test("a rank's result is bytes or JSON, by its first line") {
    def result(contents: String) = RankResult.of(contents.getBytes("UTF-8"))
    assert(result("json\n{\"a\": 1}").json.contains("{\"a\": 1}"))
    assert(result("json\n{}").bytes.isEmpty)
    assert(result("bytes\njson\n").bytes.map(new String(_)).contains("json\n"))
    assert(result("anything").bytes.map(new String(_)).contains("anything"))
    assert(result("unavailable\nwhy") == RankResult.Left(unavailable = Some("why")))
    assert(new TrainingResult(Nil, Nil, Nil).getResultJson == null)
  }
}
