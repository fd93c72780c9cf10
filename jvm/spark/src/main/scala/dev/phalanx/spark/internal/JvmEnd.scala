package dev.phalanx.spark.internal

import java.util.concurrent.TimeUnit.NANOSECONDS

import scala.util.Try

/** What Phalanx does when the JVM is asked to end, before Spark's own context is stopped.
  *
  * JAR-11 (Spark-still-stops): Hadoop gives all of Spark's shutdown hooks together a time, 30 s by default, and then
  * interrupts them; what has not run by then never does. So all that Phalanx waits for there ends within two thirds
  * of it, and an interrupt ends its waiting and nothing else.
  */
private[spark] object JvmEnd {

  /** Something that has to end before the JVM does. */
  trait Ending {

    /** Begins the end; doesn't wait. */
    def begin(): Unit

    /** Waits for it, at most so long. */
    def await(millis: Long): Unit
  }

  private var open = Set.empty[Ending]
  private lazy val hook: Object = SparkInternals.beforeShutdown(() => endAll())
  private lazy val deadline: Long = System.nanoTime + SparkInternals.shutdownTimeoutMillis * 2000000 / 3

  /** Has this ended with the JVM, until `remove`. */
  def add(ending: Ending): Unit = synchronized {
    hook: Unit
    open += ending
  }

  def remove(ending: Ending): Unit = synchronized(open -= ending)

  /** How long to wait for what may take `millis`: no longer than is left, if the JVM is ending. */
  def mayWait(millis: Long): Long =
    if (SparkInternals.inShutdown) millis.min(NANOSECONDS.toMillis(deadline - System.nanoTime)).max(0L) else millis

  /** Runs what waits; an interrupt ends the waiting. In the JVM's end it is then forgotten, else it stays set. */
  def interruptible(waiting: => Unit): Unit =
    try waiting
    catch { case _: InterruptedException => if (!SparkInternals.inShutdown) Thread.currentThread.interrupt() }

  private def endAll(): Unit = {
    // One that is over by now refuses.
    val begun = synchronized(open).filter(ending => Try(ending.begin()).isSuccess)
    begun.foreach(ending => interruptible(Try(ending.await(mayWait(Long.MaxValue))): Unit))
  }
}
