package dev.phalanx.spark.plugin

import org.apache.spark.TaskContext
import org.apache.spark.api.plugin.{ExecutorPlugin, PluginContext}
import org.slf4j.LoggerFactory

import dev.phalanx.spark.TrainingException
import dev.phalanx.spark.driver.{RankOptions, RankProgram, Settings}
import dev.phalanx.spark.internal.{JvmEnd, SparkFit, SparkInternals, Version}
import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.metrics.{ExecutorMetrics, Metric, MetricSet, NodeMetrics, PoolMetrics}
import dev.phalanx.spark.node.{LiveNodes, RankEnvironment, UnpackedJar}
import dev.phalanx.spark.scoring.ScoringCounts
import dev.phalanx.spark.ways.{TaskTunnel, TunnelAnswer, TunnelEntrance}

/** The plugin's half at an executor. */
final private[spark] class PhalanxExecutorPlugin extends ExecutorPlugin {
  // For the guard to notice and the kernel to reap, beyond the ranks' own grace.
  private val EndMillis = 3000L

  private val log = LoggerFactory.getLogger("dev.phalanx")
  private var graceMillis = 0L

  override def init(context: PluginContext, extraConf: java.util.Map[String, String]): Unit = {
    val id = context.executorID
    try {
      val settings = Settings.of(context.conf.getAll)
      graceMillis = Settings.graceMillis(settings)
      val home = UnpackedJar.get()
      val declared = Metric.declared
      val ofNodes = declared.filter(_.source == "node")
      val own = if (SparkInternals.isDriver(id)) None else Some(new MetricSet(context.metricRegistry, ofNodes))
      NodeMetrics.countedBy(new ExecutorMetrics(id, declared, own, change => context.send(change)))
      log.info(s"Phalanx ${Version.phalanx} is ready on executor $id")
      if (own.nonEmpty) {
        TunnelEntrance.by(turn => TunnelAnswer.unpack(context.ask(turn.packed)))
        PoolMetrics.register(context.metricRegistry)
        ScoringCounts.register(context.metricRegistry)
        warmUp(settings, home, context, extraConf)
      }
    } catch {
      // The executor is of use for other work; a training that comes here says the same, and fails.
      case problem @ (_: TrainingException | _: IllegalArgumentException) => log.error(problem.getMessage)
      case problem: LinkageError                                          => log.error(SparkFit.unlinked(problem))
    }
  }

  override def onTaskStart(): Unit = Option(TaskContext.get()).foreach(TaskTunnel.openFor)

  /** Starts the pool that the first run would start, in the background. */
  private def warmUp(
      settings: Array[String],
      home: UnpackedJar,
      context: PluginContext,
      extraConf: java.util.Map[String, String]
  ): Unit = {
    val python = extraConf.getOrDefault(PhalanxDriverPlugin.PythonKey, "python3")
    val application = context.conf.getExecutorEnv.flatMap { case (name, value) => Seq(name, value) } ++
      RankOptions(RankProgram.Python(python), pyFiles = Nil, localGpus = Nil).env
    Core(_.prestartPool(settings, python, application.toArray, home.folder.toString, RankEnvironment.here()))
  }

  override def shutdown(): Unit = {
    JvmEnd.interruptible(LiveNodes.endAll(
      "its executor is shutting down",
      JvmEnd.mayWait(graceMillis + EndMillis)
    ): Unit)
    if (LiveNodes.count > 0)
      log.warn(s"${LiveNodes.count} nodes have not ended in time; their guards end them with this process")
    NodeMetrics.notCounted()
    TunnelEntrance.byNothing()
    try Core { native =>
        native.endModels()
        native.endPools()
      }
    catch { case problem: TrainingException => log.debug(problem.message) } // there is no core, and no pool
    UnpackedJar.remove()
  }
}
