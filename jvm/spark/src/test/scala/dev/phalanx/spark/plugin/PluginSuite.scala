package dev.phalanx.spark.plugin

import java.nio.file.Files

import scala.util.Using

import org.apache.spark.SparkEnv

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.internal.{Json, Version}
import dev.phalanx.spark.support.Cluster.distributor
import dev.phalanx.spark.support.{ChildJvm, Cluster, PhalanxSuite, SparkUi}
import dev.phalanx.spark.ways.ConnectCommands

/** The plugin in a real application; that all works without it is `BareSuite`'s. */
class PluginSuite extends PhalanxSuite {

  private def metric(text: String, name: String): Option[Double] =
    text.linesIterator.collectFirst {
      case line
          if line.startsWith("metrics_") && line.contains(s"_driver_plugin_dev_phalanx_spark_PhalanxPlugin_$name") =>
        line.split(' ').last.toDouble
    }

  test("the driver's Prometheus endpoint has the metrics of all executors") {
    Cluster.spark
    def now(name: String) = metric(SparkUi.get("/metrics/prometheus"), name).getOrElse(-1.0)
    val started = now("ranks_started_Count")
    val failed = now("ranks_failed_Count")
    val lines = now("logs_lines_Count")
    val bytes = now("logs_bytes_Count")
    val restarted = now("ranks_restarted_Count")
    assert(started >= 0 && failed >= 0 && lines >= 0 && bytes >= 0)
    distributor().runProgram(Seq("/bin/sh", "-c", "echo one; echo two"))
    intercept[TrainingException](distributor().runProgram(Seq("/bin/false")))
    eventually {
      // Where one fails at once, the other may never start.
      assert(Set(3.0, 4.0)(now("ranks_started_Count") - started))
      assert(now("ranks_failed_Count") >= failed + 1)
      assert(now("logs_lines_Count") == lines + 4)
      assert(now("logs_bytes_Count") == bytes + 16)
      assert(now("ranks_running_Number") == 0)
    }
    assert(now("ranks_restarted_Count") == restarted)
    assert(now("join_latency_Count") >= 2 && now("start_latency_Count") >= 3, "JAR-16")
  }

  test("the dashboard for Grafana asks for metrics that the endpoint has") {
    Cluster.spark
    val dashboard = Files.readString(PhalanxSuite.root.resolve("docs/grafana/phalanx.json"))
    val panels = PhalanxSuite.rows(Json.read(dashboard).get("panels"))
    val asked = "PhalanxPlugin_(\\w+)".r.findAllMatchIn(dashboard).map(_.group(1)).toSet
    val there = SparkUi.get("/metrics/prometheus")
    assert(panels.size == 6 && asked.size == 10, asked)
    asked.foreach(name => assert(metric(there, name).nonEmpty, name))
  }

  test("the executors are ready before the first training") {
    assert(Cluster.counters(tasks = 2).toSet == Set("ExecutorMetrics"))
  }

  test("an executor has a warm pool before the first training, and tells what it takes") {
    eventually {
      val pools = Cluster.pools(tasks = 2)
      // Models that were asked before have another.
      assert(pools.forall(pool => pool(0) >= 1 && pool(1) > 0), s"JAR-18: $pools")
    }
  }

  test("a Spark Connect server that an application starts knows Phalanx's commands, beside the user's") {
    val sc = Cluster.spark.sparkContext
    val key = "spark.connect.extensions.command.classes"
    def known = SparkEnv.get.conf.get(key)
    val ours = "dev.phalanx.spark.connect.ConnectPlugin"
    assert(known == ours, "JAR-4")
    Using.resource(new AutoCloseable { def close(): Unit = { SparkEnv.get.conf.set(key, ours); () } }) { _ =>
      SparkEnv.get.conf.set(key, "a.users.Commands")
      ConnectCommands.addTo(sc)
      ConnectCommands.addTo(sc)
      assert(known == s"a.users.Commands,$ours", "JAR-4")
    }
  }

  test("a bad setting ends the application at its start, in a sentence") {
    val ended = ChildJvm.run(classOf[BareMain].getName, Seq("plugin"), Seq("-Dspark.phalanx.grace=soon"))
    assert(ended.code == 1, ended.output)
    assert(ended.output.contains("ENDED spark.phalanx.grace is"), s"JAR-1: ${ended.output}")
  }

  test("the plugin says in one line what is on, and when an executor shuts down its ranks are gone first") {
    val options = Seq("-Dspark.phalanx.grace=1s", "-Dspark.phalanx.graze=1s")
    val ended = ChildJvm.run(classOf[BareMain].getName, Seq("stop", "/bin/sleep", "300"), options)
    assert(ended.code == 0, ended.output)
    assert(ended.output.contains(s"Phalanx ${Version.phalanx} is on: "), ended.output)
    assert(ended.output.contains("spark.phalanx.graze is not a Phalanx setting"), s"JAR-1: ${ended.output}")
    assert(ended.output.contains("0 guards are left"), s"JAR-2: ${ended.output}")
    assert(ended.output.contains("ENDED ") && ended.output.contains("0 nodes are left"), ended.output)
  }
}
