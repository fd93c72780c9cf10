package dev.phalanx.spark.support

import java.io.File
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._

/** A program of the tests in a JVM of its own; it gets `signal` when it has written `signalAt`. */
object ChildJvm {
  final case class Ended(code: Int, output: String)

  /** Options of JVMs that live for seconds; `spark.jvm.options` has them, too. */
  val Quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

  def run(
      main: String,
      args: Seq[String] = Nil,
      options: Seq[String] = Nil,
      classPath: String = sys.props("java.class.path"),
      signalAt: String = null,
      signal: String = "TERM",
      seconds: Long = 100
  ): Ended = {
    val output = Files.createTempFile("phalanx-test-", ".out")
    val jvmOptions = PhalanxSuite.root.resolve("jvm/spark/src/test/spark.jvm.options")
    // A shell may have started these tests with SIGINT ignored.
    val command = Seq(
      "env",
      "--default-signal=INT",
      s"${sys.props("java.home")}/bin/java",
      "-Xmx512m",
      s"@$jvmOptions"
    ) ++ options ++
      Seq(s"-Dphalanx.root=${PhalanxSuite.root}", "-cp", classPath, main) ++ args
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
