package dev.phalanx.spark.ui;

import dev.phalanx.spark.internal.SparkVersions;
import jakarta.servlet.http.HttpServletRequest;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.WebUIPage;
import org.json4s.JValue;
import org.json4s.jackson.JsonMethods$;
import scala.xml.NodeSeq;

/** A page of Spark's UI, whose servlets are of `jakarta` from 4.0 on. Its twin differs in what it imports only. */
final class ServletPage extends WebUIPage {
  /** The request that it takes, by name. */
  static final String SERVLETS = "jakarta.servlet.http.HttpServletRequest";

  private final SparkUITab tab;
  private final UiPage page;

  ServletPage(SparkUITab tab, String path, UiPage page) {
    super(path);
    this.tab = tab;
    this.page = page;
  }

  @Override
  public NodeSeq render(HttpServletRequest request) {
    NodeSeq content = page.nodes(request::getParameter);
    return SparkVersions.sparkPage(request, page.title(request::getParameter), content, tab);
  }

  @Override
  public JValue renderJson(HttpServletRequest request) {
    return JsonMethods$.MODULE$.fromJsonNode(page.json(request::getParameter));
  }
}
