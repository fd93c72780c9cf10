package dev.phalanx.spark

import java.nio.file.{Files, Paths}
import java.util.concurrent.{CountDownLatch, TimeUnit}

import scala.collection.mutable.ArrayBuffer
import scala.util.control.NonFatal

import org.slf4j.LoggerFactory

/** One run, from the caller's thread to its result.
  *
  * RUN-1: output, phases and the outcome are handled in the caller's thread. RUN-2: when `drive` returns or throws,
  * the Spark job is over and the hub closed. RUN-3: showing output never fails a run. RUN-4: an interrupt of the
  * caller's thread, and the JVM's end (Ctrl-C), end every rank first.
  */
final private[spark] class Run(
    job: Array[Byte],
    name: String,
    bind: String,
    advertise: String,
    graceMillis: Long,
    stage: Stage
) {
  private val EventMillis = 50L // how soon an interrupt is noticed
  private val StageEndMillis = 30000L // how long the stage may take to end once all its ranks have
  private val ShutdownMillis = 3000L // how long the JVM's end waits beyond the grace

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private val began = System.nanoTime
  private val phases = ArrayBuffer.empty[Phase]
  private val over = new CountDownLatch(1)
  private var interrupted = false
  private var shows = true

  /** Runs the job to its end in this thread; throws [[TrainingException]] where it fails or is interrupted. */
  def drive(): TrainingResult = {
    val hub = Hub.open(job, bind, advertise, SparkInternals.localDir.getAbsolutePath)
    val hook = SparkInternals.beforeShutdown(() => endWithJvm(hub))
    try drive(hub)
    finally {
      hub.close()
      over.countDown()
      SparkInternals.notBeforeShutdown(hook)
      if (interrupted) Thread.currentThread.interrupt()
    }
  }

  private def drive(hub: Hub): TrainingResult = {
    val opened = elapsed
    phases += Phase("hub open", None, opened)
    stage.start(hub)
    val outcome =
      try outcomeOf(hub, opened)
      catch {
        case problem: Throwable =>
          stage.cancel()
          throw problem
      }
    val contents = outcome match {
      case _: Hub.Finished => hub.resultPath(0).map(path => Files.readAllBytes(Paths.get(path)))
      case _               =>
        stage.cancel()
        None
    }
    waitForStage()
    outcome match {
      case Hub.Finished(ranks) =>
        phases += Phase("returned", None, elapsed)
        TrainingResult.of(ranks, contents, phases.toVector)
      case Hub.Failed(failure, text) => throw TrainingException.ofFailure(failure, text, stage.error)
      case other                     => throw new IllegalStateException(s"$other is no outcome")
    }
  }

  private def outcomeOf(hub: Hub, opened: Double): Hub.Event = {
    var outcome: Hub.Event = null
    while (outcome == null) {
      heedInterrupt(hub)
      hub.next(EventMillis).foreach {
        case Hub.Output(text)                  => show(text)
        case Hub.Reached(point, rank, seconds) =>
          phases += Phase(point, if (rank < 0) None else Some(rank), opened + seconds)
        case Hub.Status(_) | Hub.Told => ()
        case Hub.Resubmit(attempt)    => stage.start(hub, attempt)
        case end                      => outcome = end
      }
    }
    outcome
  }

  private def heedInterrupt(hub: Hub): Unit =
    if (Thread.interrupted()) {
      if (interrupted)
        throw new TrainingException("cancelled", s"$name was interrupted twice, and left to end by itself")
      interrupted = true
      hub.stop("interrupted by the caller")
    }

  private def waitForStage(): Unit =
    try
      if (!stage.join(StageEndMillis)) {
        log.warn(s"The Spark stage of $name has not ended; cancelling it.")
        stage.cancel()
      }
    catch {
      case _: InterruptedException =>
        interrupted = true
        stage.cancel()
    }

  private def show(text: String): Unit =
    if (shows)
      try {
        Console.out.print(text)
        Console.out.flush()
      } catch {
        case NonFatal(problem) =>
          shows = false
          log.warn(s"The ranks' output can't be shown any more ($problem); the run goes on.")
      }

  private def asked = "the driver was asked to end (Ctrl-C, or a signal)"

  private def endWithJvm(hub: Hub): Unit =
    try {
      hub.stop(asked)
      val ended = over.await(graceMillis + ShutdownMillis, TimeUnit.MILLISECONDS)
      // The caller's thread may not get to say it any more, and neither may the loggers.
      System.err.println(
        s"$name was cancelled: $asked; ${if (ended) "its ranks are gone" else "it has not ended yet"}"
      )
    } catch { case NonFatal(_) => () } // the run was over

  private def elapsed: Double = (System.nanoTime - began) / 1e9
}
