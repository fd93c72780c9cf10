package dev.phalanx.spark.ui;

import dev.phalanx.spark.internal.SparkVersions;
import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import org.apache.spark.SecurityManager;
import org.apache.spark.ui.SparkUI;

/**
 * Takes the button of a run's page that asks for stacks, from who may, as TAB-3 says. Its twin differs in what it
 * imports only.
 */
final class StacksServlet extends HttpServlet {
  private static final long serialVersionUID = 1L;

  private final transient SecurityManager security;
  private final transient RunStore store;
  private final transient StacksQuestions questions;

  private StacksServlet(SecurityManager security, RunStore store, StacksQuestions questions) {
    this.security = security;
    this.store = store;
    this.questions = questions;
  }

  static void attachTo(SparkUI ui, RunStore store, StacksQuestions questions) {
    StacksServlet servlet = new StacksServlet(ui.securityManager(), store, questions);
    SparkVersions.attachServlet(ui, "/phalanx/run/stacks", servlet);
  }

  @Override
  protected void doPost(HttpServletRequest request, HttpServletResponse response) throws IOException {
    String run = request.getParameter("id");
    if (!security.checkModifyPermissions(request.getRemoteUser())) {
      response.sendError(
          HttpServletResponse.SC_FORBIDDEN,
          "you need the right to modify this application (spark.modify.acls) to ask for stacks");
    } else if (run == null || store.run(run).isEmpty()) {
      response.sendError(HttpServletResponse.SC_NOT_FOUND, "there is no such run");
    } else {
      questions.ask(run);
      response.setStatus(HttpServletResponse.SC_SEE_OTHER);
      response.setHeader("Location", "../?id=" + URLEncoder.encode(run, StandardCharsets.UTF_8));
    }
  }
}
