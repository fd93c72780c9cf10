package dev.phalanx.spark.jni

import org.slf4j.LoggerFactory

/** The core's log records on their way to slf4j, under the logger `dev.phalanx.core`. */
private[spark] object CoreLog {
  private val log = LoggerFactory.getLogger("dev.phalanx.core")

  def handOver(native: Native): Unit =
    native.drainLogs().grouped(2).foreach {
      case Array("ERROR", text) => log.error(text)
      case Array("WARN", text)  => log.warn(text)
      case Array("INFO", text)  => log.info(text)
      case Array("DEBUG", text) => log.debug(text)
      case Array(_, text)       => log.trace(text)
      case _                    => ()
    }
}
