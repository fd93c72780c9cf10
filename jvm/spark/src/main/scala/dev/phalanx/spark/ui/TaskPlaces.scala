package dev.phalanx.spark.ui

import java.util.{HashMap => JHashMap, LinkedHashMap => JLinkedHashMap, Map => JMap}

/** At which executors the tasks of runs are: those of a run's newest stage, or newest gang of tasks. The core's
  * snapshots know partitions, Spark's events executors. Other stages are not looked at. The newest `mostRuns` are
  * remembered, and the newest `MostStages` of their stages. Each call takes the same time, however many there are.
  */
final private[ui] class TaskPlaces(mostRuns: Int) {
  private val byRun = new Newest[String, TaskPlaces.OfRun](mostRuns)
  private val byStage = new Newest[Int, TaskPlaces.OfRun](TaskPlaces.MostStages)

  /** A stage is a run's: its tasks will be told. It has the places of the run's other stages in the same gang. */
  def expect(run: String, gang: Option[String], stage: Int): Unit = {
    val name = gang.getOrElse(stage.toString)
    val before = byRun.get(run)
    val places = if (before != null && before.gang == name) before else TaskPlaces.OfRun(name)
    if (places ne before) byRun.put(run, places): Unit
    byStage.put(stage, places): Unit
  }

  def placed(stage: Int, partition: Int, executor: String): Unit = {
    val places = byStage.get(stage)
    if (places != null && executor != null) places.executors.put(partition, executor): Unit
  }

  /** By partition; empty where nothing is known. */
  def executorsOf(run: String): JMap[Integer, String] =
    Option(byRun.get(run)).fold(JMap.of[Integer, String]())(places => new JHashMap(places.executors))
}

private object TaskPlaces {
  val MostStages = 10000

  /** Where the tasks of a stage or a gang are, by partition. */
  final private case class OfRun(gang: String) {
    val executors = new JHashMap[Integer, String]
  }
}

/** What was put last, at most `most` entries. */
final private class Newest[K, V](most: Int) extends JLinkedHashMap[K, V] {
  override protected def removeEldestEntry(eldest: JMap.Entry[K, V]): Boolean = size > most
}
