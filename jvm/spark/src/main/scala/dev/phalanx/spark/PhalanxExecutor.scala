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
      val settings = Settings.of(context.conf.getAll)
      graceMillis = Settings.graceMillis(settings)
      val home = NodeHome.get()
      log.info(s"Phalanx ${Version.phalanx} is ready on executor $id")
      if (own.nonEmpty) {
        PoolMetrics.register(context.metricRegistry)
        warmUp(settings, home, context, extraConf)
      }
    } catch {
      // The executor is of use for other work; a training that comes here says the same, and fails.
      case problem: TrainingException => log.error(problem.message)
    }
  }

  /** Starts the pool that the first run would start, in the background. */
  private def warmUp(
      settings: Array[String],
      home: NodeHome,
      context: PluginContext,
      extraConf: java.util.Map[String, String]
  ): Unit = {
    val program = RankProgram.Python(extraConf.getOrDefault(PhalanxDriver.PythonKey, "python3"))
    val env = RankEnvironment.variables(context.conf.getExecutorEnv.toMap, Nil)
    Core(_.prestartPool(settings, home.guard, program.pool(home), env))
  }

  override def shutdown(): Unit = {
    if (!LiveNodes.endAll("its executor is shutting down", graceMillis + EndMillis))
      log.warn(s"${LiveNodes.count} nodes have not ended in time; their guards end them with this process")
    NodeMetrics.notCounted()
    try Core(_.endPools())
    catch { case problem: TrainingException => log.debug(problem.message) } // there is no core, and no pool
    NodeHome.remove()
  }
}
