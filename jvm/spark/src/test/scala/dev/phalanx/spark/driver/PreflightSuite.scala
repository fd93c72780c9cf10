package dev.phalanx.spark.driver

import java.time.Duration

import scala.jdk.CollectionConverters._
import scala.util.Try

import com.fasterxml.jackson.databind.JsonNode
import org.slf4j.LoggerFactory

import dev.phalanx.spark.Options
import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.support.PhalanxSuite.{conf, contract, rows, text}
import dev.phalanx.spark.support.{Logged, PhalanxSuite}

/** As JOB-16 says, the cases of `tests/contract/checks.json`, which the tests of Rust and Python run, too. */
class PreflightSuite extends PhalanxSuite {
  private val table = contract("checks.json")
  private val errors =
    rows(contract("errors.json").path("errors")).map(row => text(row, "kind") -> text(row.path("jvm"), "class")).toMap
  private val log = LoggerFactory.getLogger("checks.test")

  /** Runs `body` for each case: what it returns or throws, and what it logs, has to be what the case says. */
  private def cases(name: String, value: String)(body: JsonNode => Any): Unit =
    rows(table.path(name)).zipWithIndex.filterNot { case (row, _) => text(row, "only").contains("python") }.foreach {
      case (row, number) =>
        test(s"$name, case ${number + 1}") {
          var outcome: Try[Any] = null
          val said = Logged.by("checks.test") { outcome = Try(body(row)) }
          text(row, "error") match {
            case Some(message) =>
              val thrown = outcome.failed.get
              assert(thrown.getMessage == message)
              assert(errors(text(row, "kind")).contains(thrown.getClass.getName))
            case None =>
              val got = outcome.get
              if (value.nonEmpty) assert(shown(got) == shown(row.get(value)))
          }
          text(row, "warning").foreach(line => assert(said == Seq(s"WARN $line")))
          Option(row.get("log")).foreach(lines => assert(said == Json.texts(lines).map("INFO " + _)))
          if (!row.has("warning") && !row.has("log")) assert(said.isEmpty)
        }
    }

  private def shown(value: Any): String = value match {
    case node: JsonNode if node.isArray  => Json.texts(node).mkString(" ")
    case node: JsonNode if node.isObject =>
      node.fieldNames.asScala.map(name => s"$name=${node.path(name).asText()}").toSeq.sorted.mkString(" ")
    case map: Map[_, _] => map.map { case (name, value) => s"$name=$value" }.toSeq.sorted.mkString(" ")
    case node: JsonNode => node.asText()
    case many: Seq[_]   => many.mkString(" ")
    case Some(one)      => one.toString
    case None           => "null"
    case other          => other.toString
  }

  private def number(row: JsonNode, name: String): Int = row.path(name).asInt()

  cases("given", "settings") { row =>
    val wanted = row.path("given")
    def time(seconds: JsonNode) = Duration.ofMillis((seconds.asDouble() * 1000).toLong)
    def saying(options: Options, name: String)(change: (Options, JsonNode) => Options) =
      Option(wanted.get(name)).fold(options)(change(options, _))
    val warm = saying(new Options(), "warm")((options, set) => options.withWarm(set.asBoolean()))
    val restarts = saying(warm, "max_restarts")((options, set) => options.withMaxRestarts(set.asInt()))
    val preemptions =
      saying(restarts, "max_preemptions")((options, set) => options.withMaxPreemptions(set.asInt()))
    val kinds =
      saying(preemptions, "restart_on")((options, set) => options.withRestartOn(Json.texts(set).toSeq: _*))
    val hang = saying(kinds, "hang_timeout")((options, set) => options.withHangTimeout(time(set)))
    val settings = saying(hang, "grace")((options, set) => options.withGrace(time(set))).settings
    Core(_.newJob("given", 1, 1, false, Settings.of(settings)))
    settings
  }

  private def plan(
      processes: Int,
      local: Boolean = false,
      gpu: Boolean = false,
      gpus: Boolean = false,
      also: String => Option[String] = _ => None
  )(amount: Option[String]): Preflight.Plan = {
    val key = if (local) "spark.driver.resource.gpu.amount" else "spark.task.resource.gpu.amount"
    Preflight.plan(processes, local, gpu, gpus, asked => if (asked == key) amount else also(asked), log)
  }

  cases("num_processes", "value")(row => plan(number(row, "value"))(None).ranks)

  cases("num_tasks", "tasks") { row =>
    val also = conf(row.path("conf"))
    plan(number(row, "num_processes"), gpu = row.path("use_gpu").asBoolean(), also = also)(text(row, "amount")).tasks
  }

  cases("driver_limited", "ranks") { row =>
    val gpus = row.path("gpu").asBoolean()
    plan(number(row, "num_processes"), local = true, gpu = true, gpus = gpus)(text(row, "amount")).ranks
  }

  private def lease(gpus: Seq[String], count: Int, visible: Option[String] = None) =
    GpuLease.take(count, useGpu = true, localMode = true, "local[1]", gpus, visible)

  cases("devices", "devices") { row =>
    val addresses = Json.texts(row.path("addresses"))
    val taken = lease(addresses, addresses.length, text(row, "visible"))
    taken.close()
    taken.gpus
  }

  cases("dynamic_allocation", "")(row => Preflight.mayStart(conf(row.path("conf")), log))

  cases("encryption", "")(row => Preflight.mayStart(conf(row.path("conf")), log))

  cases("profile", "profile") { row =>
    def is(name: String) = row.path(name).asBoolean(false)
    val taken = Preflight.profile(is("use_gpu"), is("local_mode"), row.path("spark").asText(), conf(row.path("conf")))
    taken.fold[Any](None)(_.taken.take(5))
  }

  cases("executor_cores", "cores")(row => Preflight.executorCores(conf(row.path("conf"))))

  rows(table.path("most_slots")).zipWithIndex.foreach { case (row, number) =>
    test(s"most_slots, case ${number + 1}") {
      val most = text(row, "slots").map(_.toInt)
      val tasks = most.fold(99)(_ + 1)
      val refused = intercept[IllegalStateException](
        Preflight.awaitSlots(tasks, row.path("master").asText(), conf(row.path("conf")), None, 0, log, () => 0)
      )
      val limit = most.fold("after 0 s the registered executors have 0")(n => s"there are never more than $n;")
      assert(refused.getMessage.contains(limit))
    }
  }

  cases("slots", "") { row =>
    val there = rows(row.path("there")).map(_.asInt()).iterator
    var last = 0
    def now(): Int = {
      if (there.hasNext) last = there.next()
      last
    }
    val timeout = row.path("timeout_ms").asLong()
    Preflight.awaitSlots(
      number(row, "tasks"),
      row.path("master").asText(),
      _ => None,
      None,
      timeout,
      log,
      () => now()
    )
  }

  test("a stage is submitted again when its slots are back, at the time-out, or when the run is given up") {
    var there = 0
    def now(): Int = { there += 1; there }
    Preflight.awaitSlotsAgain(4, 20000, () => now(), () => false)
    assert(there == 4)
    Preflight.awaitSlotsAgain(4, 200, () => 3, () => false)
    Preflight.awaitSlotsAgain(4, 20000, () => 3, () => true)
  }

  cases("leases", "gives") { row =>
    val gpus = Json.texts(row.path("gpus"))
    val others = rows(row.path("taken")).map(count => lease(gpus, count.asInt()))
    try {
      val taken = lease(gpus, number(row, "count"))
      taken.close()
      taken.gpus
    } finally others.foreach(_.close())
  }

  test("a lease that was given back can be taken again") {
    lease(Seq("0"), 1).close()
    lease(Seq("0"), 1).close()
  }

  cases("train_file", "") { row =>
    val is = (what: String) => text(row, "found").contains(what)
    Core(_.checkTrainFile("PATH", is("file"), is("directory"), text(row, "shipped").orNull))
  }

  rows(table.path("stage_failure")).zipWithIndex.foreach { case (row, number) =>
    test(s"stage_failure, case ${number + 1}") {
      val said = Array(row.path("class").asText(), row.path("text").asText())
      val kind = row.path("kind").asText("start")
      assert(Core(_.explainStage(said)).toSeq == Seq(kind, row.path("sentence").asText()))
    }
  }
}
