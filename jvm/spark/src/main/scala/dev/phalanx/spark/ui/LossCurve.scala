package dev.phalanx.spark.ui

import java.util.Locale

import scala.xml.NodeSeq

/** What a run reported as its loss, by step, as a small picture (SVG). */
private[spark] object LossCurve {
  private val (width, height) = (600, 120)

  def of(losses: Seq[(Double, Double)], name: String): NodeSeq = {
    val (steps, values) = (losses.map(_._1), losses.map(_._2))
    val (low, high) = (values.min, values.max)
    def place(value: Double, from: Double, to: Double, size: Int) =
      if (to > from) (value - from) / (to - from) * size else size / 2.0
    val points = losses.map { case (step, value) =>
      val (x, y) = (place(step, steps.min, steps.max, width), height - place(value, low, high, height))
      String.format(Locale.ROOT, "%.1f,%.1f", Double.box(x), Double.box(y))
    }
    <svg role="img" aria-label={s"loss of $name"} viewBox={s"-4 -4 ${width + 110} ${height + 24}"}
         style="width:100%;max-width:710px;font-size:12px;font-family:sans-serif" xmlns="http://www.w3.org/2000/svg">
      <line x1="0" x2={width.toString} y1={height.toString} y2={height.toString} stroke="#8885"/>
      <polyline points={points.mkString(" ")} fill="none" stroke="#0d6efd" stroke-width="1.5"/>
      <text x={(width + 8).toString} y="10" fill="currentColor">{Shown.number(high)}</text>
      <text x={(width + 8).toString} y={height.toString} fill="currentColor">{Shown.number(low)}</text>
      <text x="0" y={(height + 15).toString} fill="currentColor">{s"step ${Shown.number(steps.min)}"}</text>
      <text x={width.toString} y={(height + 15).toString} text-anchor="end" fill="currentColor">{
      s"step ${Shown.number(steps.max)}"
    }</text>
    </svg>
  }
}
