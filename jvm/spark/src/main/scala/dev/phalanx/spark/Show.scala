package dev.phalanx.spark

import scala.util.control.NonFatal

import org.slf4j.Logger

/** Writes output to the stdout that the caller has; gives up, once and loudly, if it can't. */
final private[spark] class Show(log: Logger) {
  private var broken = false

  def apply(text: String): Unit =
    if (!broken)
      try {
        Console.out.print(text)
        Console.out.flush()
      } catch {
        case NonFatal(problem) =>
          broken = true
          log.warn(s"The ranks' output can't be shown any more ($problem); the run goes on.")
      }
}
