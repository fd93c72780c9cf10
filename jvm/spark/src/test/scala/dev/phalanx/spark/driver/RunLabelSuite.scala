package dev.phalanx.spark.driver

import java.io.ByteArrayOutputStream

import org.slf4j.LoggerFactory

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.support.PhalanxSuite
import dev.phalanx.spark.support.PhalanxSuite.{contract, rows}

/** The cases of `tests/contract/output.json`, which Python's tests read, too. */
class RunLabelSuite extends PhalanxSuite {
  private val table = contract("output.json")

  test("runs at once have labels that differ") {
    rows(table.path("labels")).foreach { row =>
      var running = Map.empty[String, RunLabel]
      val labels = Json.texts(row.path("runs")).flatMap { name =>
        if (name.startsWith("-")) {
          running(name.tail).end()
          running -= name.tail
          None
        } else {
          val label = new RunLabel(name)
          label.begin()
          running += label.text -> label
          Some(label.text)
        }
      }
      running.values.foreach(_.end())
      assert(labels == Json.texts(row.path("labels")), "DISPLAY-9")
    }
  }

  test("lines have the run's label while another one runs") {
    rows(table.path("lines")).foreach { row =>
      val (text, among) = (row.path("text").asText(), row.path("among").asText())
      val (label, other) = (new RunLabel(row.path("label").asText()), new RunLabel("another"))
      label.begin()
      other.begin()
      val shown =
        try print(label, text)
        finally other.end()
      val alone =
        try print(label, text)
        finally label.end()
      assert((shown, alone) == ((among, text)), "DISPLAY-9")
    }
  }

  private def print(label: RunLabel, text: String): String = {
    val out = new ByteArrayOutputStream
    Console.withOut(out)(new OutputPrinter(label, LoggerFactory.getLogger("output.test"))(text))
    out.toString
  }
}
