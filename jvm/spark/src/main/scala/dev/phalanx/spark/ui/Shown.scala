package dev.phalanx.spark.ui

import java.net.URLEncoder
import java.util.Locale

import scala.xml.{Node, NodeSeq, Text}

import dev.phalanx.spark.internal.SparkInternals

/** How values look in the tab's pages. */
private[spark] object Shown {
  private val (grey, blue, green, red, brown) = ("#6c757d", "#0d6efd", "#198754", "#c62f3e", "#b35c00")
  private val Colors = Map(
    "running" -> blue,
    "starting" -> blue,
    "restarting" -> brown,
    "succeeded" -> green,
    "finished" -> green,
    "failed" -> red,
    "raised" -> red,
    "exited" -> red,
    "signaled" -> red,
    "out_of_memory" -> red,
    "not_started" -> red,
    "lost" -> red
  )

  /** What the pages' classes look like; one for a page, so that a row of many is small. */
  val style: Node =
    <style>{
      Seq(
        ".phx-badge{color:#fff;border-radius:.25rem;padding:.1em .45em;font-size:85%;white-space:nowrap}",
        ".phx-share{display:inline-block;min-width:7em;padding-right:.3em;text-align:right;background:" +
          "linear-gradient(var(--color),var(--color)) 0 100%/var(--share) 3px no-repeat,#8882 0 100%/100% 3px no-repeat}",
        ".phx-text{overflow-wrap:anywhere}",
        ".phx-slow td{background-color:#ffc10733 !important}",
        ".phx-lines{background-color:#8881;padding:.6em;border-radius:.25rem;max-height:30em;overflow:auto}",
        ".phx-failure{border:1px solid #c62f3e;border-left-width:6px;border-radius:.25rem;padding:.6em 1em;margin:1em 0}"
      ).mkString("\n")
    }</style>

  /** A state as a badge; `cut` says that the application ended before. */
  def state(state: String, cut: Boolean = false): Node = {
    val said = if (state.isEmpty) "starting" else state
    if (cut) badge(s"$said when the application ended", grey)
    else badge(said, Colors.getOrElse(state, grey))
  }

  def badge(text: String, color: String): Node =
    <span class="phx-badge" style={s"background-color:$color"}>{text}</span>

  def date(seconds: Double): String = if (seconds > 0) SparkInternals.formatDate((seconds * 1000).toLong) else ""

  def duration(seconds: Double): String = SparkInternals.formatDuration((seconds * 1000).toLong)

  /** As `duration`, with the tenths that an axis of some seconds needs. */
  def tick(seconds: Double): String =
    if (seconds > 0 && seconds < 60) String.format(Locale.ROOT, "%.1f s", Double.box(seconds)) else duration(seconds)

  def rate(value: Double): String = String.format(Locale.ROOT, if (value < 0.1) "%.4f" else "%.2f", Double.box(value))

  def number(value: Double): String =
    if (value == math.rint(value) && value.abs < 1e15) value.toLong.toString
    else String.format(Locale.ROOT, if (value.abs >= 100) "%.1f" else "%.4g", Double.box(value))

  def step(step: Long, of: Option[Long]): String = of.fold(step.toString)(all => s"$step of $all")

  /** A share of time: a number and a bar. */
  def share(share: Option[Double]): NodeSeq = share.filterNot(_.isNaN).fold(NodeSeq.Empty) { value =>
    val percent = (value.max(0).min(1) * 100).round
    val color = if (percent >= 50) brown else blue
    <span class="phx-share" style={s"--share:$percent%;--color:$color"}>{s"$percent %"}</span>
  }

  /** Links to stages of Spark's, from a page so many folders below the UI's root. */
  def stages(run: StoredRun, up: String): NodeSeq = {
    val links = run.stages.toArray.toSeq.map(id => <a href={s"${up}stages/stage/?id=$id&attempt=0"}>{id.toString}</a>)
    links.foldLeft(NodeSeq.Empty)((all, link) => if (all.isEmpty) link else all ++ Text(", ") ++ link)
  }

  def encoded(text: String): String = URLEncoder.encode(text, "UTF-8")
}
