package dev.phalanx.spark.ui

import java.util.Properties

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.JsonNode
import org.apache.spark.scheduler.{
  SparkListenerApplicationEnd,
  SparkListenerJobStart,
  SparkListenerTaskStart,
  StageInfo,
  TaskInfo,
  TaskLocality
}
import org.apache.spark.util.kvstore.{InMemoryStore, KVStoreSerializer}

import dev.phalanx.spark.internal.{Json, SparkInternals}
import dev.phalanx.spark.support.PhalanxSuite

class RunStoreSuite extends PhalanxSuite {

  private def started(second: Int) = "started" -> s"${1790000000 + second}"

  test("the newest of each run is kept, and the newest runs") {
    val store = new RunStore(new InMemoryStore)
    assert(store.isEmpty)
    (1 to RunStore.MostRuns + 5).foreach(each => store.take(Samples.event(Samples.run(s"run-$each", started(each)))))
    store.take(Samples.event(Samples.run("run-20", started(20), "attempt" -> "9")))
    assert(store.runs.map(_.run) == (RunStore.MostRuns + 5 to 6 by -1).map(each => s"run-$each"), "TAB-10")
    assert(Json.read(store.run("run-20").get.snapshot).get("attempt").asText == "9")
    assert(store.run("run-1").isEmpty && store.run("nobody").isEmpty)
  }

  test("a snapshot that is too large or says nothing of a run is left out") {
    val store = new RunStore(new InMemoryStore)
    val listener = RunStore.listener(store)
    val long = "x" * RunStore.MostChars
    Seq[JsonNode](
      null,
      Json.read("[]"),
      Json.read("17"),
      Json.read("{}"),
      Samples.run("y" * 300),
      Samples.run("a", "lines" -> s"""["$long"]""")
    ).foreach(json => listener.onOtherEvent(Samples.event(json)))
    assert(store.isEmpty, "TAB-10 TAB-11")
  }

  test("a job of Spark's is its run's stage, also before the run has told anything") {
    val store = new RunStore(new InMemoryStore)
    val listener = RunStore.listener(store)
    def job(id: Int, run: String, stage: Int) = {
      val properties = new Properties
      if (run != null) properties.setProperty(RunStore.RunProperty, run)
      val stages = Seq(new StageInfo(stage, 0, "barrier", 2, Nil, Nil, "", resourceProfileId = 0))
      listener.onJobStart(SparkListenerJobStart(id, 1790000000000L, stages, properties))
    }
    job(0, "a", 4)
    listener.onOtherEvent(Samples.event(Samples.run("a")))
    job(1, "a", 5)
    job(2, null, 6)
    listener.onJobStart(SparkListenerJobStart(3, 0, Nil, null))
    assert(store.run("a").get.stages.asScala.map(_.toInt) == Seq(4, 5))
    assert(store.run("a").get.snapshot.nonEmpty && store.runs.size == 1)
  }

  test("a rank has the executor of its task, of the run's newest stage") {
    val store = new RunStore(new InMemoryStore)
    store.began("a", 5, Seq(1))
    store.placed(1, 0, "7")
    store.placed(2, 1, "no stage of a run's")
    store.began("a", 6, Seq(3))
    store.placed(3, 1, "9")
    val ranks = """[{"rank":0,"partition":0},{"rank":1,"partition":1},{"rank":2,"partition":1,"executor":"4"}]"""
    store.take(Samples.event(Samples.run("a", "ranks" -> ranks)))
    val told = RunSnapshot.withSparks(store.run("a").get)
    assert(told.findValuesAsText("executor").asScala == Seq("9", "4"), "what nobody knows isn't said")
    val cut = RunSnapshot.withSparks(store.run("a").get.whenCut())
    assert(cut.get("state").asText == "failed when the application ended")
  }

  test("the tasks of a gang have a stage each, and all their places are known") {
    val store = new RunStore(new InMemoryStore)
    val listener = RunStore.listener(store)
    val seats = 1000
    def gather(gang: String, first: Int, executor: String, started: Int): Unit = {
      val properties = new Properties
      properties.setProperty(RunStore.RunProperty, "a")
      properties.setProperty(SparkInternals.GANG, gang)
      (0 until seats).foreach { seat =>
        val stages = Seq(new StageInfo(first + seat, 0, "seat", 1, Nil, Nil, "", resourceProfileId = 0))
        listener.onJobStart(SparkListenerJobStart(first + seat, 1790000000000L, stages, properties))
      }
      (0 until started).foreach { seat =>
        val task = new TaskInfo(seat, 0, 0, seat, 0, s"$executor$seat", "host", TaskLocality.ANY, false)
        listener.onTaskStart(SparkListenerTaskStart(first + seat, 0, task))
      }
    }
    def executors = {
      listener.onOtherEvent(Samples.event(Samples.run("a")))
      store.run("a").get.executors.asScala.map { case (partition, at) => partition.toInt -> at }.toMap
    }
    gather("one", 10, "x", seats)
    assert(executors == (0 until seats).map(seat => seat -> s"x$seat").toMap)
    gather("two", 5000, "y", 3)
    assert(executors == Map(0 -> "y0", 1 -> "y1", 2 -> "y2"), "those of the newest gang")
    assert(store.run("a").get.stages.size == RunStore.MostStages)
  }

  test("what runs when the application ends is marked, and what is over is not") {
    val store = new RunStore(new InMemoryStore)
    store.take(Samples.event(Samples.run("over")))
    store.take(Samples.event(Samples.run("runs", "state" -> "\"running\"")))
    RunStore.listener(store).onApplicationEnd(SparkListenerApplicationEnd(1790000000000L))
    assert(store.run("runs").get.cut && !store.run("over").get.cut)
  }

  test("a run is read back from a store on a disk as it was") {
    val serializer = new KVStoreSerializer
    val run = new StoredRun("a", 5, "{}", java.util.List.of(3, 4), java.util.Map.of(0, "1"), true)
    val read = serializer.deserialize(serializer.serialize(run), classOf[StoredRun])
    assert((read.run, read.started) == (("a", 5)) && read.isSame(run) && read.executors == run.executors)
  }
}
