package dev.phalanx.spark.support

import java.io.{ByteArrayOutputStream, File, PrintStream}
import java.util.concurrent.{CompletableFuture, TimeUnit}

import scala.util.Try

import org.apache.spark.SparkContext
import org.apache.spark.sql.SparkSession

import dev.phalanx.spark.jni.Core
import dev.phalanx.spark.metrics.NodeMetrics
import dev.phalanx.spark.{PhalanxPlugin, TorchDistributor}

/** The one cluster of the tests: two executors of one core each, with processes of their own, and the plugin. */
object Cluster {

  lazy val spark: SparkSession = {
    val session = SparkSession.builder()
      .master("local-cluster[2,1,1024]")
      .appName("phalanx-tests")
      .config("spark.plugins", classOf[PhalanxPlugin].getName)
      .config(ChildJvm.ofExecutors)
      .config("spark.driver.host", "127.0.0.1")
      .config("spark.driver.bindAddress", "127.0.0.1")
      .config("spark.ui.port", "0")
      .config(
        "spark.metrics.conf.driver.sink.prometheusServlet.class",
        "org.apache.spark.metrics.sink.PrometheusServlet"
      )
      .config("spark.metrics.conf.driver.sink.prometheusServlet.path", "/metrics/prometheus")
      .config("spark.ui.showConsoleProgress", "false")
      .config("spark.pyspark.python", PhalanxSuite.python)
      .config("spark.phalanx.grace", "1s")
      .getOrCreate()
    sys.addShutdownHook(session.stop())
    session
  }

  def sc: SparkContext = spark.sparkContext

  def distributor(ranks: Int = 2): TorchDistributor = {
    spark
    new TorchDistributor(numProcesses = ranks, localMode = false, useGpu = false)
  }

  /** Who counts what nodes do, at each executor that ran a task of this. */
  def counters(tasks: Int): Seq[String] =
    sc.parallelize(0 until tasks, tasks).map(_ => NodeMetrics.current.getClass.getSimpleName).collect().toSeq

  /** What warm pools take at each executor that ran a task of this: how many, their bytes, how many guards were
    * forked.
    */
  def pools(tasks: Int): Seq[Seq[Long]] =
    sc.parallelize(0 until tasks, tasks).map(_ => Core(_.poolUsage()).toSeq).collect().toSeq

  /** A job that holds a slot, from when the file `held` is there until `release` is. */
  def holding(held: File, release: File): Going[Unit] = holding(sc, held, release)

  def holding(of: SparkContext, held: File, release: File): Going[Unit] =
    new Going(of.parallelize(0 until 1, 1).foreach { _ =>
      held.createNewFile(): Unit
      val until = System.nanoTime + 120000000000L
      while (!release.exists && System.nanoTime < until) Thread.sleep(20)
    })

  /** What `body` prints. */
  def printed(body: => Any): String = {
    val bytes = new ByteArrayOutputStream
    Console.withOut(new PrintStream(bytes, true, "UTF-8"))(body)
    bytes.toString("UTF-8")
  }

  /** Something that goes on in a thread of its own. */
  final class Going[A](body: => A) {
    private val outcome = new CompletableFuture[Try[A]]
    private val thread = new Thread(() => { outcome.complete(Try(body)); () }, "going")
    thread.setDaemon(true)
    thread.start()

    def interrupt(): Unit = thread.interrupt()

    def isOver: Boolean = outcome.isDone

    def end(seconds: Long = 40): Try[A] = outcome.get(seconds, TimeUnit.SECONDS)
  }
}
