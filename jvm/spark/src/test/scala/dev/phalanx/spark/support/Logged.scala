package dev.phalanx.spark.support

import java.util.concurrent.ConcurrentLinkedQueue

import scala.jdk.CollectionConverters._

import org.apache.logging.log4j.LogManager
import org.apache.logging.log4j.core.appender.AbstractAppender
import org.apache.logging.log4j.core.config.Property
import org.apache.logging.log4j.core.{LogEvent, Logger}

/** What loggers say while a block runs. */
object Logged {

  /** `LEVEL message` of the logger `name` and those below it. */
  def by(name: String)(body: => Unit): Seq[String] = {
    val lines = new ConcurrentLinkedQueue[String]
    val logger = LogManager.getLogger(name).asInstanceOf[Logger]
    val appender = new AbstractAppender(s"logged-$name", null, null, true, Property.EMPTY_ARRAY) {
      override def append(event: LogEvent): Unit = {
        lines.add(s"${event.getLevel} ${event.getMessage.getFormattedMessage}")
        ()
      }
    }
    appender.start()
    logger.addAppender(appender)
    try body
    finally {
      logger.removeAppender(appender)
      appender.stop()
    }
    lines.asScala.toVector
  }
}
