package dev.phalanx.spark.plugin

import java.util.Collections

import org.apache.spark.SparkContext
import org.apache.spark.api.plugin.{DriverPlugin, PluginContext}
import org.slf4j.LoggerFactory

import dev.phalanx.spark.driver.{RankProgram, Settings}
import dev.phalanx.spark.internal.{SparkFit, SparkInternals, Version}
import dev.phalanx.spark.jni.{Core, NativeLibrary}
import dev.phalanx.spark.metrics.{ClusterMetrics, Metric, MetricChange, RunCounts}
import dev.phalanx.spark.ui.{LiveUi, RunStore}
import dev.phalanx.spark.ways.{ConnectCommands, TunnelExits, TunnelTurn}
import dev.phalanx.spark.{PhalanxExtensions, TrainingException}

/** The plugin's half at the driver. */
final private[spark] class PhalanxDriverPlugin extends DriverPlugin {
  private val log = LoggerFactory.getLogger("dev.phalanx")
  private var metrics: ClusterMetrics = _

  override def init(sc: SparkContext, context: PluginContext): java.util.Map[String, String] =
    try start(sc, context)
    catch {
      case problem: LinkageError => // as JAR-3 says
        log.warn(s"${SparkFit.unlinked(problem)}; the application goes on without Phalanx's plugin")
        Collections.emptyMap()
    }

  private def start(sc: SparkContext, context: PluginContext): java.util.Map[String, String] = {
    val settings = Settings.of(sc.getConf.getAll)
    val (library, declared) =
      try {
        Core(_.settingWarnings(settings)).foreach(log.warn)
        (s"metrics, native library for ${NativeLibrary.platform}", Metric.declared)
      } catch {
        // The executors may well be other machines; a driver in Python has the core by another way.
        case problem: TrainingException if problem.kind == "start" =>
          log.warn(s"${problem.message}; spark.phalanx.* is not checked")
          ("no native library on the driver, and no metrics there", Nil)
      }
    val set = settings.grouped(2).map(pair => s", ${pair(0)}=${pair(1)}").mkString
    log.info(s"Phalanx ${Version.phalanx} is on: executors start ranks themselves, $library$set")
    metrics = new ClusterMetrics(context.metricRegistry, declared)
    sc.addSparkListener(metrics)
    RunCounts.countedBy(new RunCounts(metrics, declared, RunStore.MostRuns))
    LiveUi.attachTo(sc)
    ConnectCommands.addTo(sc)
    SparkInternals.addExtension(sc, classOf[PhalanxExtensions].getName)
    // Executors have the driver's settings, but not its environment.
    Collections.singletonMap(PhalanxDriverPlugin.PythonKey, RankProgram.pythonOf(sc.getConf.getOption))
  }

  override def shutdown(): Unit = RunCounts.notCounted()

  override def receive(message: Object): Object =
    message match {
      case change: MetricChange =>
        if (metrics != null) metrics.add(change)
        null
      case other =>
        val answer = TunnelTurn.unpack(other).map(TunnelExits.here.answer(_).packed)
        if (answer.isEmpty) log.debug(s"an unknown message: $other")
        answer.orNull
    }
}

private[spark] object PhalanxDriverPlugin {

  /** Under which the driver tells executors which Python runs ranks. */
  val PythonKey = "python"
}
