package dev.phalanx.spark

import java.io.File
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.Files
import java.util.concurrent.TimeUnit

import scala.jdk.CollectionConverters._

/** A program of the tests in a JVM of its own; it gets SIGTERM when it has written `terminateAt`. */
object ChildJvm {
  final case class Ended(code: Int, output: String)

  def run(
      main: String,
      args: Seq[String] = Nil,
      options: Seq[String] = Nil,
      classPath: String = sys.props("java.class.path"),
      terminateAt: String = null,
      seconds: Long = 100
  ): Ended = {
    val output = Files.createTempFile("phalanx-test-", ".out")
    val jvmOptions = PhalanxSuite.root.resolve("jvm/spark/src/test/spark.jvm.options")
    val command = Seq(s"${sys.props("java.home")}/bin/java", "-Xmx512m", s"@$jvmOptions") ++ options ++
      Seq(s"-Dphalanx.root=${PhalanxSuite.root}", "-cp", classPath, main) ++ args
    val process = new ProcessBuilder(command.asJava)
      .redirectErrorStream(true)
      .redirectOutput(output.toFile)
      .redirectInput(new File("/dev/null"))
      .start()
    try {
      if (terminateAt != null) {
        while (process.isAlive && !Files.readString(output, UTF_8).contains(terminateAt)) Thread.sleep(20)
        process.destroy()
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
