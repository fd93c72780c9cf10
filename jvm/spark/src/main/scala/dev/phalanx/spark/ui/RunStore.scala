package dev.phalanx.spark.ui

import java.io.Closeable

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.spark.scheduler.{
  SparkListener,
  SparkListenerApplicationEnd,
  SparkListenerEvent,
  SparkListenerJobStart,
  SparkListenerTaskStart
}
import org.apache.spark.util.kvstore.KVStore
import org.slf4j.LoggerFactory

import dev.phalanx.spark.internal.{Json, SparkInternals}

/** The runs of an application, in Spark's own store of what its UI shows: the driver's, or a history server's.
  *
  * TAB-10 (bounded): it has the newest `MostRuns` runs, and of each the newest snapshot.
  *
  * TAB-11 (never-disturbs): no event makes it throw at Spark's listener bus, however strange.
  */
final private[spark] class RunStore(store: KVStore) {
  private val tasks = new TaskPlaces(RunStore.MostRuns)

  /** The newest first. */
  def runs: Seq[StoredRun] = {
    val found = store.view(classOf[StoredRun]).index(StoredRun.BY_START).reverse().closeableIterator()
    try found.asScala.take(RunStore.MostRuns).toVector
    finally (found: Closeable).close()
  }

  def run(id: String): Option[StoredRun] =
    try Some(store.read(classOf[StoredRun], id))
    catch { case _: NoSuchElementException => None }

  def isEmpty: Boolean = store.count(classOf[StoredRun]) == 0

  /** Keeps the newest that an event tells of a run. */
  def take(event: RunEvent): Unit =
    if (event.snapshot != null) {
      val id = event.snapshot.path("run").asText("")
      val text = event.snapshot.toString
      if (id.nonEmpty && id.length <= RunStore.MostIdChars && text.length <= RunStore.MostChars) {
        val started = (event.snapshot.path("started").asDouble(0) * 1000).toLong
        keep(id, started)(_.withSnapshot(text, tasks.executorsOf(id)))
      }
    }

  /** A job of Spark's that is a run's; all those of one `gang` have its tasks together. */
  def began(run: String, millis: Long, stages: Seq[Int], gang: Option[String] = None): Unit =
    keep(run, millis) { before =>
      val all = (before.stages.asScala ++ stages.map(Int.box)).distinct.takeRight(RunStore.MostStages)
      tasks.expect(run, gang, all.last)
      before.withStages(all.asJava)
    }

  /** A task of a stage is at an executor. */
  def placed(stage: Int, partition: Int, executor: String): Unit = tasks.placed(stage, partition, executor)

  /** The application is over, and with it whatever ran. */
  def applicationEnded(): Unit = runs.foreach { run =>
    if (!run.cut && (run.snapshot.isEmpty || !RunSnapshot.of(Json.read(run.snapshot)).over))
      store.write(run.whenCut())
  }

  private def keep(id: String, started: Long)(change: StoredRun => StoredRun): Unit = {
    val before = run(id)
    store.write(change(before.getOrElse(new StoredRun(id, started))))
    if (before.isEmpty) forgetOldest()
  }

  private def forgetOldest(): Unit = {
    val spare = store.count(classOf[StoredRun]) - RunStore.MostRuns
    if (spare > 0) {
      val oldest = store.view(classOf[StoredRun]).index(StoredRun.BY_START).max(spare).closeableIterator()
      val ids =
        try oldest.asScala.map(_.run).toVector
        finally (oldest: Closeable).close()
      ids.foreach(store.delete(classOf[StoredRun], _))
    }
  }
}

private[spark] object RunStore {
  val MostRuns = 50
  val MostStages = 100 // each restart by another stage has one, or one for each task

  /** Of a snapshot; one of 1,000 ranks has a quarter of a million. */
  val MostChars: Int = 1 << 20
  val MostIdChars = 200

  /** The property of a Spark job that says whose it is. */
  val RunProperty = "phalanx.run"

  /** What keeps `store` up to date. */
  def listener(store: RunStore): SparkListener = new Listener(store)

  final private class Listener(store: RunStore) extends SparkListener {
    private val log = LoggerFactory.getLogger("dev.phalanx")

    override def onOtherEvent(event: SparkListenerEvent): Unit = event match {
      case run: RunEvent => quietly(store.take(run))
      case _             => ()
    }

    override def onJobStart(start: SparkListenerJobStart): Unit =
      Option(start.properties).flatMap(all => Option(all.getProperty(RunProperty))).foreach { run =>
        if (run.nonEmpty && run.length <= MostIdChars) quietly {
          store.began(run, start.time, start.stageIds, Option(start.properties.getProperty(SparkInternals.GANG)))
        }
      }

    override def onTaskStart(start: SparkListenerTaskStart): Unit = quietly {
      // A seat's task has index 0, whatever its partition; that of an old log has no partition.
      val info = start.taskInfo
      store.placed(start.stageId, if (info.partitionId < 0) info.index else info.partitionId, info.executorId)
    }

    override def onApplicationEnd(end: SparkListenerApplicationEnd): Unit = quietly(store.applicationEnded())

    private def quietly(change: => Unit): Unit =
      try change
      catch { case NonFatal(problem) => log.debug("An event of a run is not shown", problem) }
  }
}
