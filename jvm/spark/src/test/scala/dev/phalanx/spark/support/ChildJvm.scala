package dev.phalanx.spark.support

import java.io.File
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._

/** A program of the tests in a JVM of its own; it gets `signal` when it has written `signalAt`. */
object ChildJvm {
  final case class Ended(code: Int, output: String)

  /** Options of JVMs that live for seconds. `spark.jvm.options` has the first two, too; the archive has Spark's
    * classes for those whose class path begins as Spark's own: tests/support/jvm.py, which says what it is worth.
    */
  val Quick: String = {
    val archive = PhalanxSuite.root.resolve("target/spark-classes.jsa")
    val archived = if (Files.exists(archive)) s" -Xlog:disable -XX:SharedArchiveFile=$archive" else ""
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" + archived
  }

  /** As Spark's launcher has it (`AbstractCommandBuilder.buildClassPath`). */
  private lazy val sparkClassPath = {
    val home = sys.env("SPARK_HOME")
    val first = new File(s"$home/jars").list().filter(_.startsWith("slf4j-api-")).map(jar => s"$home/jars/$jar")
    (s"$home/conf/" +: first :+ s"$home/jars/*").mkString(File.pathSeparator)
  }

  /** Settings of a cluster whose executors have what this JVM has. Spark they have themselves, and first. */
  val ofExecutors: Map[String, String] = {
    val classPath = sys.props("java.class.path").split(File.pathSeparator).filter(_.endsWith("classes"))
    Map(
      "spark.executor.extraJavaOptions" -> Quick,
      "spark.executorEnv.SPARK_DIST_CLASSPATH" -> classPath.mkString(File.pathSeparator)
    )
  }

  def run(
      main: String,
      args: Seq[String] = Nil,
      options: Seq[String] = Nil,
      variables: Seq[String] = Nil,
      classPath: String = sys.props("java.class.path"),
      signalAt: String = null,
      signal: String = "TERM",
      seconds: Long = 100
  ): Ended = {
    val output = Files.createTempFile("phalanx-test-", ".out")
    val jvmOptions = PhalanxSuite.root.resolve("jvm/spark/src/test/spark.jvm.options")
    // A shell may have started these tests with SIGINT ignored.
    val command = Seq("env", "--default-signal=INT") ++ variables ++ Seq(
      s"${sys.props("java.home")}/bin/java",
      "-Xmx512m",
      s"@$jvmOptions"
    ) ++ Quick.split(' ') ++ options ++
      Seq(
        s"-Dphalanx.root=${PhalanxSuite.root}",
        "-cp",
        s"$sparkClassPath${File.pathSeparator}$classPath",
        main
      ) ++ args
    val process = new ProcessBuilder(command.asJava)
      .redirectErrorStream(true)
      .redirectOutput(output.toFile)
      .redirectInput(new File("/dev/null"))
      .start()
    try {
      if (signalAt != null) {
        while (process.isAlive && !Files.readString(output, UTF_8).contains(signalAt)) Thread.sleep(20)
        new ProcessBuilder("kill", s"-$signal", process.pid.toString).inheritIO().start().waitFor()
      }
      if (!process.waitFor(seconds, TimeUnit.SECONDS))
        throw new AssertionError(s"$main has not ended after $seconds s:\n${Files.readString(output, UTF_8)}")
      Ended(process.exitValue, Files.readString(output, UTF_8))
    } finally {
      process.destroyForcibly().waitFor()
      Files.delete(output)
    }
  }
}
