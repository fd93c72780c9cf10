package dev.phalanx.spark.ui;

import dev.phalanx.spark.internal.SparkVersions;
import javax.servlet.http.HttpServletRequest;
import org.apache.spark.ui.SparkUITab;
import org.apache.spark.ui.WebUIPage;
import org.json4s.JsonAST;
import org.json4s.jackson.JsonMethods$;
import scala.xml.NodeSeq;

/** A page of Spark's UI, whose servlets are of `javax` until 3.5. Its twin differs in what it imports only. */
final class ServletPage extends WebUIPage {
  /** The request that it takes, by name. */
  static final String SERVLETS = "javax.servlet.http.HttpServletRequest";

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
  public JsonAST.JValue renderJson(HttpServletRequest request) {
    return JsonMethods$.MODULE$.fromJsonNode(page.json(request::getParameter));
  }
}
