package dev.phalanx.spark

import org.apache.spark.SparkException

import dev.phalanx.spark.driver.Settings
import dev.phalanx.spark.driver.{RankOptions, RankProgram, StageFailure}
import dev.phalanx.spark.node.{NodeTask, RankEnvironment}
import dev.phalanx.spark.support.PhalanxSuite

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

  test("a rank is told where Spark's files are, and Spark's Python modules") {
    val here = RankEnvironment.here("./files", "/spark/pyspark.zip").grouped(2).map(pair => pair(0) -> pair(1)).toMap
    assert(here("PYTHONPATH") == "/spark/pyspark.zip", "JAR-25")
    assert(here("PHALANX_SPARK_FILES") == s"${sys.props("user.dir")}/files", "JAR-24")
    val options = RankOptions(RankProgram.Python("python3"), Seq("a.zip", "b.egg"), Nil)
    assert(options.env.toSeq == Seq("PHALANX_PY_FILES", "a.zip:b.egg"))
    val having = options.copy(variables = Seq("TOKEN", "hidden"))
    assert(having.env.toSeq.drop(2) == Seq("TOKEN", "hidden") && !having.toString.contains("hidden"))
  }

  test("the ranks' Python is chosen by PySpark's rules") {
    val set = Map("spark.pyspark.python" -> "/a/python")
    assert(RankProgram.pythonOf(set.get, Map("PYSPARK_PYTHON" -> "/b/python").get) == "/a/python")
    assert(RankProgram.pythonOf(_ => None, Map("PYSPARK_PYTHON" -> "/b/python").get) == "/b/python")
    assert(RankProgram.pythonOf(_ => None, _ => None) == "python3")
  }

  test("a stage's failure is explained by what was thrown, without words by its class") {
    assert(StageFailure.of(new RuntimeException("no library")) == StageFailure("start", "no library"))
    assert(StageFailure.of(new RuntimeException).sentence == "java.lang.RuntimeException")
  }

  test("a cancelled Spark job is a cancellation, anything else is not") {
    val cancelled = new SparkException("SPARK_JOB_CANCELLED", Map("jobId" -> "1", "reason" -> "x"), null)
    assert(StageFailure.of(cancelled).isCancellation)
    assert(StageFailure.of(new RuntimeException(cancelled)).isCancellation)
    assert(!StageFailure.of(new SparkException("no")).isCancellation)
  }

  test("the hub is where Spark's driver is, unless a setting says what tasks are told or where it listens") {
    val (host, bind) = (Seq("spark.phalanx.hub.host", "lb"), Seq("spark.phalanx.hub.bindAddress", "127.0.0.3"))
    def endpoint(settings: Seq[String], bind: String, driver: String) =
      Settings.hubEndpoint(settings.toArray, bind, driver)
    assert(endpoint(Nil, "", "driver") == ("", "driver") && endpoint(Nil, "0.0.0.0", "d") == ("0.0.0.0", "d"))
    assert(endpoint(host, "0.0.0.0", "d") == ("0.0.0.0", "lb") && endpoint(bind, "", "d") == ("127.0.0.3", "d"))
    // The narrowest address that is the driver's own.
    assert(endpoint(host, "", "127.0.0.1") == ("127.0.0.1", "lb") && endpoint(host, "", "d.invalid") == ("", "lb"))
    assert(endpoint(host, "", "127.0.0.9") == ("127.0.0.9", "lb"), "any address of the loopback is")
    assert(endpoint(host ++ bind, "0.0.0.0", "d") == ("127.0.0.3", "lb"))
  }

  test("only Phalanx's settings reach the core, and those of Spark's that they follow") {
    val ours = Seq("spark.phalanx.a" -> "b", "spark.phalanx.grace" -> "1s")
    val followed = "spark.ssl.rpc.enabled" -> "true"
    assert(Settings.of(followed +: ("spark.app.name" -> "x") +: ours.reverse).toSeq ==
      (ours :+ followed).flatMap { case (key, value) => Seq(key, value) })
  }
}
