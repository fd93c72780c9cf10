package dev.phalanx.spark.ui

import java.util.{HashMap => JHashMap, LinkedHashMap => JLinkedHashMap, Map => JMap}

/** At which executors the tasks of runs' newest stages are. The core's snapshots know partitions, Spark's events
  * executors. Other stages are not looked at, and the newest `mostStages` of runs are remembered.
  */
final private[ui] class TaskPlaces(mostStages: Int) {
  private val byStage = new JLinkedHashMap[Int, JMap[Integer, String]] {
    override protected def removeEldestEntry(eldest: JMap.Entry[Int, JMap[Integer, String]]): Boolean =
      size > mostStages
  }

  /** A stage is a run's: its tasks will be told. */
  def expect(stage: Int): Unit = byStage.putIfAbsent(stage, new JHashMap): Unit

  def placed(stage: Int, partition: Int, executor: String): Unit = {
    val places = byStage.get(stage)
    if (places != null && executor != null) places.put(partition, executor): Unit
  }

  /** By partition; empty where nothing is known. */
  def executorsOf(stage: Option[Integer]): JMap[Integer, String] =
    stage.flatMap(id => Option(byStage.get(id.intValue))).fold(JMap.of[Integer, String]())(new JHashMap(_))
}
