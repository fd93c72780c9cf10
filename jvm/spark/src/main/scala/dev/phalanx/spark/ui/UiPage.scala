package dev.phalanx.spark.ui

import scala.xml.{Node, NodeSeq}

import com.fasterxml.jackson.databind.JsonNode

/** A page of the tab, without what a web server has: parameters go in, HTML and JSON come out.
  *
  * TAB-14 (text-is-text): whatever a rank, a host or a caller said is text in it, and never markup.
  *
  * TAB-15 (relative-links): its links are relative, so that they hold at the driver, behind a proxy and on a history
  * server.
  *
  * TAB-16 (no-script): it needs no script, which Spark's UI may forbid.
  */
abstract private[spark] class UiPage {
  import UiPage.Parameters

  def title(parameters: Parameters): String
  def html(parameters: Parameters): Seq[Node]
  def json(parameters: Parameters): JsonNode

  /** As `html`, of the type that Java needs. */
  final def nodes(parameters: Parameters): NodeSeq = NodeSeq.fromSeq(html(parameters))
}

private[spark] object UiPage {

  /** A request's parameters; null for one that it hasn't. */
  type Parameters = java.util.function.Function[String, String]

  def parameter(parameters: Parameters, name: String): Option[String] =
    Option(parameters.apply(name)).filter(_.nonEmpty)
}
