package dev.phalanx.spark

import java.time.Duration

import scala.jdk.CollectionConverters._
import scala.util.Try

import com.fasterxml.jackson.databind.JsonNode
import org.slf4j.LoggerFactory

import dev.phalanx.spark.PhalanxSuite.{conf, contract, rows, text}

/** CHECK-2: the cases of `tests/contract/checks.json`, which Python's tests read, too. */
class ChecksSuite extends PhalanxSuite {
  private val table = contract("checks.json")
  private val log = LoggerFactory.getLogger("checks.test")

  /** Runs `body` for each case: what it returns or throws, and what it logs, has to be what the case says. */
  private def cases(name: String, value: String)(body: JsonNode => Any): Unit =
    rows(table.path(name)).zipWithIndex.foreach { case (row, number) =>
      test(s"$name, case ${number + 1}") {
        var outcome: Try[Any] = null
        val said = Logged.by("checks.test") { outcome = Try(body(row)) }
        text(row, "error") match {
          case Some(message) => assert(outcome.failed.get.getMessage == message)
          case None          =>
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
    def value[A](name: String)(setting: JsonNode => A) = Option(row.path("given").get(name)).map(setting)
    def time(seconds: JsonNode) = Duration.ofMillis((seconds.asDouble() * 1000).toLong)
    val settings = Seq(
      value("warm")(set => Settings.warm(set.asBoolean())),
      value("max_restarts")(set => Settings.maxRestarts(set.asInt())),
      value("restart_on")(set => Settings.restartOn(Json.texts(set))),
      value("hang_timeout")(set => Settings.hangTimeout(time(set))),
      value("grace")(set => Settings.grace(time(set)))
    ).flatten.toMap
    Core(_.newJob("given", 1, 1, false, Settings.of(settings)))
    settings
  }

  cases("num_processes", "value")(row => Checks.numProcesses(number(row, "value")))

  cases("num_tasks", "tasks") { row =>
    Gpus.numTasks(number(row, "num_processes"), row.path("use_gpu").asBoolean(), _ => text(row, "amount"))
  }

  cases("driver_limited", "ranks") { row =>
    val resources = if (row.path("gpu").asBoolean()) Set("gpu") else Set.empty[String]
    Gpus.driverLimited(number(row, "num_processes"), _ => text(row, "amount"), resources, log)
  }

  cases("devices", "devices")(row => Gpus.devices(Json.texts(row.path("addresses")), text(row, "visible")))

  cases("dynamic_allocation", "")(row => Checks.dynamicAllocation(conf(row.path("conf"))))

  cases("encryption", "")(row => Checks.encryption(conf(row.path("conf")), log))

  cases("most_slots", "slots")(row => Checks.mostSlots(row.path("master").asText(), conf(row.path("conf"))))

  cases("slots", "") { row =>
    val there = rows(row.path("there")).map(_.asInt()).iterator
    var last = 0
    def now(): Int = {
      if (there.hasNext) last = there.next()
      last
    }
    val timeout = row.path("timeout_ms").asLong()
    Checks.slots(row.path("master").asText(), _ => None, number(row, "tasks"), timeout, log, () => now())
  }

  cases("leases", "gives") { row =>
    val gpus = Json.texts(row.path("gpus"))
    val others = rows(row.path("taken")).map(count => GpuLease.take(gpus, count.asInt()))
    try {
      val lease = GpuLease.take(gpus, number(row, "count"))
      lease.close()
      lease.gpus
    } finally others.foreach(_.close())
  }

  test("a lease that was given back can be taken again") {
    GpuLease.take(Seq("0"), 1).close()
    GpuLease.take(Seq("0"), 1).close()
  }
}
