package dev.phalanx.spark

import java.time.Duration

/** The `spark.phalanx.*` settings of a configuration, as the Rust core takes them; it knows them, not Scala. What a
  * distributor is given are settings, too.
  */
private[spark] object Settings {
  val Prefix = "spark.phalanx."

  /** Keys and values, in turn. */
  def of(pairs: Iterable[(String, String)]): Array[String] =
    pairs.toSeq
      .filter { case (key, _) => key.startsWith(Prefix) }
      .sorted
      .flatMap { case (key, value) => Seq(key, value) }
      .toArray

  def maxRestarts(count: Int): (String, String) = s"${Prefix}maxRestarts" -> count.toString
  def restartOn(kinds: Seq[String]): (String, String) = s"${Prefix}restartOn" -> kinds.mkString(",")
  def hangTimeout(time: Duration): (String, String) = s"${Prefix}hangTimeout" -> s"${time.toMillis}ms"
  def grace(time: Duration): (String, String) = s"${Prefix}grace" -> s"${time.toMillis}ms"
  def warm(enabled: Boolean): (String, String) = s"${Prefix}warm.enabled" -> enabled.toString

  /** `spark.phalanx.grace`. Throws [[TrainingException]] for a bad value of any setting. */
  def graceMillis(settings: Array[String]): Long =
    Json.read(Core(_.newJob("settings", 1, 1, false, settings))).path("policy").path("grace").asLong()
}
