package dev.phalanx.spark.ui

import java.net.URLEncoder

import scala.xml.{Node, NodeSeq, Text}

import dev.phalanx.spark.internal.SparkInternals

/** How values look in the tab's pages. */
private[spark] object Shown {
  private val Grey = "#6c757d"

  /** The colours of a run's states, as the core's page has them; a history server has no core to ask. */
  private[ui] val Colors = Map(
    "starting" -> "#2b74d9",
    "running" -> "#2b74d9",
    "restarting" -> "#b35c00",
    "succeeded" -> "#1f8a56",
    "failed" -> "#cf3f4a",
    "cancelled" -> "#7d63b8"
  )

  /** What the pages' classes look like; one for a page, so that a row of many is small. */
  val style: Node =
    <style>{
      Seq(
        ".phx-badge{color:#fff;border-radius:.25rem;padding:.1em .45em;font-size:85%;white-space:nowrap}",
        ".phx-text{overflow-wrap:anywhere}",
        ".phx-lines{background-color:#8881;padding:.6em;border-radius:.25rem;max-height:30em;overflow:auto}"
      ).mkString("\n")
    }</style>

  /** A state as a badge; `isCut` says that the application ended before. */
  def state(state: String, isCut: Boolean = false): Node =
    if (isCut) badge(cut(state), Grey)
    else badge(named(state), Colors.getOrElse(named(state), Grey))

  /** The state of a run that was in it when the application ended. */
  def cut(state: String): String = s"${named(state)} when the application ended"

  private def named(state: String): String = if (state.isEmpty) "starting" else state

  private def badge(text: String, color: String): Node =
    <span class="phx-badge" style={s"background-color:$color"}>{text}</span>

  def date(seconds: Double): String = if (seconds > 0) SparkInternals.formatDate((seconds * 1000).toLong) else ""

  def duration(seconds: Double): String = SparkInternals.formatDuration((seconds * 1000).toLong)

  def step(step: Long, of: Option[Long]): String = of.fold(step.toString)(all => s"$step of $all")

  /** Links to stages of Spark's, from a page so many folders below the UI's root. */
  def stages(run: StoredRun, up: String): NodeSeq = {
    val links = run.stages.toArray.toSeq.map(id => <a href={s"${up}stages/stage/?id=$id&attempt=0"}>{id.toString}</a>)
    links.foldLeft(NodeSeq.Empty)((all, link) => if (all.isEmpty) link else all ++ Text(", ") ++ link)
  }

  def encoded(text: String): String = URLEncoder.encode(text, "UTF-8")
}
