package dev.phalanx.spark

import java.util.Collections

import org.apache.spark.SparkContext
import org.apache.spark.api.plugin.{DriverPlugin, PluginContext}
import org.slf4j.LoggerFactory

/** The plugin's half at the driver. */
final private[spark] class PhalanxDriver extends DriverPlugin {
  private val log = LoggerFactory.getLogger("dev.phalanx")
  private var metrics: ClusterMetrics = _

  override def init(sc: SparkContext, context: PluginContext): java.util.Map[String, String] = {
    val settings = Settings.of(sc.getConf.getAll)
    val library =
      try {
        Core(_.settingWarnings(settings)).foreach(log.warn)
        s"native library for ${NativeLibrary.platform}"
      } catch {
        // The executors may well be other machines; a driver in Python has the core by another way.
        case problem: TrainingException if problem.kind == "start" =>
          log.warn(s"${problem.message}; spark.phalanx.* is not checked")
          "no native library on the driver"
      }
    val set = settings.grouped(2).map(pair => s", ${pair(0)}=${pair(1)}").mkString
    log.info(s"Phalanx ${Version.phalanx} is on: executors start ranks themselves, metrics, $library$set")
    metrics = new ClusterMetrics(context.metricRegistry)
    sc.addSparkListener(metrics)
    // Executors have the driver's settings, but not its environment.
    Collections.singletonMap(PhalanxDriver.PythonKey, RankProgram.pythonOf(sc.getConf.getOption))
  }

  override def receive(message: Object): Object = {
    message match {
      case change: MetricChange => metrics.add(change)
      case other                => log.debug(s"an unknown message: $other")
    }
    null
  }
}

private[spark] object PhalanxDriver {

  /** Under which the driver tells executors which Python runs ranks. */
  val PythonKey = "python"
}
