package dev.phalanx.spark.ui

import java.util.Locale

import scala.xml.{Node, NodeSeq}

/** A run's phases and restarts as a picture (SVG): a row each, on one axis from its start to its end. */
private[spark] object Timeline {
  private val Width = 1000
  private val LabelWidth = 170
  private val RowHeight = 22
  private val MostRows = 60
  private val Ticks = 6
  private val Colors = Vector("#6ea8fe", "#a3cfbb", "#ffda6a", "#a98eda", "#79dfc1", "#feb272", "#e685b5", "#adb5bd")

  def of(snapshot: RunSnapshot): NodeSeq = {
    val now = snapshot.ended.getOrElse(snapshot.time)
    val seconds = (now - snapshot.started).max(1e-3)
    val phases = snapshot.phases.take(MostRows)
    def x(time: Double): Double =
      LabelWidth + (Width - LabelWidth) * ((time - snapshot.started) / seconds).max(0).min(1)
    val bottom = phases.size * RowHeight
    if (phases.isEmpty) <p>No phase has begun yet.</p>
    else
      <svg role="img" aria-label="timeline" viewBox={s"0 0 $Width ${bottom + 24}"} preserveAspectRatio="xMinYMin meet"
           style="width:100%;max-width:1100px;font-size:12px;font-family:sans-serif" xmlns="http://www.w3.org/2000/svg">
        {
        (0 to Ticks).map(tick =>
          axis(snapshot.started + seconds * tick / Ticks, seconds * tick / Ticks, x, bottom, tick)
        )
      }
        {phases.zipWithIndex.map { case (phase, row) => bar(phase, row, now, x) }}
        {snapshot.restarts.map(at => mark(at, x(at.time), bottom))}
      </svg>
  }

  private def axis(time: Double, after: Double, x: Double => Double, bottom: Int, tick: Int): NodeSeq = {
    val at = x(time)
    val anchor = if (tick == 0) "start" else if (tick == Ticks) "end" else "middle"
    <line x1={px(at)} x2={px(at)} y1="0" y2={bottom.toString} stroke="#8885"/>
    <text x={px(at)} y={(bottom + 16).toString} text-anchor={anchor} fill="currentColor">{
      Shown.tick(after)
    }</text>
  }

  private def bar(phase: PhaseSpan, row: Int, now: Double, x: Double => Double): NodeSeq = {
    val (from, end) = (x(phase.start), x(phase.end.getOrElse(now)))
    val top = row * RowHeight
    val lasted = Shown.duration((phase.end.getOrElse(now) - phase.start).max(0))
    <text x="0" y={(top + 15).toString} fill="currentColor">{short(phase.name)}</text>
    <rect x={px(from)} y={(top + 3).toString} width={px((end - from).max(2))} height={(RowHeight - 6).toString} rx="2"
          fill={Colors(row % Colors.size)}><title>{s"${phase.name}: $lasted"}</title></rect>
  }

  private def mark(restart: Restart, at: Double, bottom: Int): Node =
    <line x1={px(at)} x2={px(at)} y1="0" y2={
      bottom.toString
    } stroke="#c62f3e" stroke-width="2" stroke-dasharray="4 3">
      <title>{s"restart: ${restart.cause}"}</title>
    </line>

  private def short(name: String) = if (name.length > 26) name.take(25) + "…" else name

  private def px(value: Double) = String.format(Locale.ROOT, "%.1f", Double.box(value))
}
