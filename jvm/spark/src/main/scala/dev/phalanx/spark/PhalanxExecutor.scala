package dev.phalanx.spark

import org.apache.spark.api.plugin.{ExecutorPlugin, PluginContext}
import org.slf4j.LoggerFactory

/** The plugin's half at an executor. */
final private[spark] class PhalanxExecutor extends ExecutorPlugin {
  // For the guard to notice and the kernel to reap, beyond the ranks' own grace.
  private val EndMillis = 3000L

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private var graceMillis = 0L
  private var counter: ExecutorMetrics = _

  override def init(context: PluginContext, extraConf: java.util.Map[String, String]): Unit = {
    val id = context.executorID
    val own =
      if (SparkInternals.isDriver(id)) None
      else Some(new MetricSet(context.metricRegistry, () => counter.running))
    counter = new ExecutorMetrics(id, own, change => context.send(change))
    NodeMetrics.countedBy(counter)
    try {
      graceMillis = Settings.graceMillis(Settings.of(context.conf.getAll))
      NodeHome.get()
      log.info(s"Phalanx ${Version.phalanx} is ready on executor $id")
    } catch {
      // The executor is of use for other work; a training that comes here says the same, and fails.
      case problem: TrainingException => log.error(problem.message)
    }
  }

  override def shutdown(): Unit = {
    if (!LiveNodes.endAll("its executor is shutting down", graceMillis + EndMillis))
      log.warn(s"${LiveNodes.count} nodes have not ended in time; their guards end them with this process")
    NodeMetrics.notCounted()
    NodeHome.remove()
  }
}
