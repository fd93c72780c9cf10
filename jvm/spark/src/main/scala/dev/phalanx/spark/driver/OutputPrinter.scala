package dev.phalanx.spark.driver

import scala.util.control.NonFatal

import org.slf4j.Logger

/** Writes a run's output to the caller's stdout. If it can't, it says so once and gives up. */
final private[spark] class OutputPrinter(label: RunLabel, log: Logger) {
  private var broken = false

  def apply(text: String): Unit =
    if (!broken)
      try {
        Console.out.print(label.on(text))
        Console.out.flush()
      } catch {
        case NonFatal(problem) =>
          broken = true
          log.warn(s"The ranks' output can't be shown any more ($problem); the run goes on.")
      }
}
