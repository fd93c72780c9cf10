package dev.phalanx.spark

import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, SparkPlugin}

/** Phalanx as a plugin of Spark: configuration checked at start, executors that are ready, metrics.
  *
  * Everything works without it, only colder: executors then load the native library and unpack Phalanx's Python files
  * when their first training begins.
  *
  * {{{
  * spark-submit --jars phalanx-spark_2.13-0.1.0.jar --conf spark.plugins=dev.phalanx.spark.PhalanxPlugin ...
  * }}}
  *
  * PLUGIN-1: a bad `spark.phalanx.*` value ends the application at its start, in a sentence; an unknown key is warned
  * about. PLUGIN-2: when an executor shuts down, its ranks are gone before its JVM is.
  */
class PhalanxPlugin extends SparkPlugin {
  override def driverPlugin(): DriverPlugin = new PhalanxDriver
  override def executorPlugin(): ExecutorPlugin = new PhalanxExecutor
}
