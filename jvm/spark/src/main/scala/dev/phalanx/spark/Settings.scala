package dev.phalanx.spark

/** The `spark.phalanx.*` settings of a configuration, as the Rust core takes them; it knows them, not Scala. */
private[spark] object Settings {
  val Prefix = "spark.phalanx."

  /** Keys and values, in turn. */
  def of(pairs: Iterable[(String, String)]): Array[String] =
    pairs.toSeq
      .filter { case (key, _) => key.startsWith(Prefix) }
      .sorted
      .flatMap { case (key, value) => Seq(key, value) }
      .toArray

  /** `spark.phalanx.grace`. Throws [[TrainingException]] for a bad value of any setting. */
  def graceMillis(settings: Array[String]): Long =
    Json.read(Core(_.newJob("settings", 1, 1, false, settings))).path("policy").path("grace").asLong()
}
