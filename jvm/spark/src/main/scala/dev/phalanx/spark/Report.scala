package dev.phalanx.spark

import dev.phalanx.spark.internal.Json

/** What a rank told last by `phalanx.report`.
  *
  * {{{
  * run.reports.get(0).flatMap(_.number("loss"))     // phalanx.report(step=120, loss=0.3)
  * }}}
  *
  * @param step how far it is
  * @param valuesJson what else it told, as a JSON object
  */
final case class Report(step: Long, valuesJson: String) {

  /** One of the values, where it is a number. */
  def number(name: String): Option[Double] =
    Option(Json.read(valuesJson).get(name)).filter(_.isNumber).map(_.asDouble())

  def getStep: Long = step
  def getValuesJson: String = valuesJson

  /** As `number`; null for `None`. */
  def getNumber(name: String): java.lang.Double = number(name).map(Double.box).orNull
}
