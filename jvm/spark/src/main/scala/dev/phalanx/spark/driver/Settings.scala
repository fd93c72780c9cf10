package dev.phalanx.spark.driver

import scala.util.Try

import dev.phalanx.spark.internal.Json
import dev.phalanx.spark.jni.Core

/** The `spark.phalanx.*` settings of a configuration, and those of Spark's that they follow, in the form that the
  * Rust core takes. The core knows the settings, Scala doesn't.
  */
private[spark] object Settings {
  val Prefix = "spark.phalanx."

  /** None where the native library can't be loaded: whoever asks the core for more says why. */
  private lazy val followed: Set[String] = Try(Core(_.settingKeys()).toSet).getOrElse(Set.empty)

  /** Keys and values, in turn. */
  def of(pairs: Iterable[(String, String)]): Array[String] =
    pairs.toSeq
      .filter { case (key, _) => key.startsWith(Prefix) || followed.contains(key) }
      .sorted
      .flatMap { case (key, value) => Seq(key, value) }
      .toArray

  /** Where the hub binds and what tasks are told, where Spark's driver has bound `bind` (empty: nothing was said) and
    * tells `host`.
    */
  def hubEndpoint(settings: Array[String], bind: String, host: String): (String, String) = {
    val values = settings.grouped(2).map(pair => pair(0) -> pair(1)).toMap
    def set(name: String) = values.getOrElse(Prefix + name, "")
    val found = Core(_.hubEndpoint(bind, host, set("hub.bindAddress"), set("hub.host")))
    (found(0), found(1))
  }

  /** What the core is told beside the settings: whether the ranks are on the driver's host, outside of any task. */
  def localMode(enabled: Boolean): Array[String] = Array("phalanx.localMode", enabled.toString)

  /** The same: whose the checkpoints are, an `Owner` of the core's. Of what Scala runs all of the place runs. */
  def owner(user: String, kind: String, place: String): Array[String] =
    Array(
      "phalanx.owner",
      Json.write("user" -> user, "kind" -> kind, "place" -> place, "name" -> "", "line" -> 0)
    )

  /** `spark.phalanx.grace`. Throws `IllegalArgumentException` for a bad value of any setting. */
  def graceMillis(settings: Array[String]): Long =
    Core(_.graceMillis(settings))
}
