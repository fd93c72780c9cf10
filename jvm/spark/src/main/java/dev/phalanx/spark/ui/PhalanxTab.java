package dev.phalanx.spark.ui;

import dev.phalanx.spark.internal.SparkVersions;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.SparkUITab;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Option;

/**
 * The tab "Phalanx" of Spark's UI. Spark keeps tabs for its own packages; Scala hides them from others, Java doesn't.
 *
 * <p>TAB-2 (never-an-error): where it can't be attached there is none, and a line of the log says why. The application
 * goes on, and so does a history server.
 *
 * <p>TAB-3 (who-may): who may see it is Spark's decision: its pages are behind the UI's own filters. To ask the ranks
 * for their stacks takes the right to modify the application, as to kill a job does.
 */
final class PhalanxTab extends SparkUITab {
  private PhalanxTab(SparkUI ui, RunStore store, StacksQuestions questions) {
    super(ui, "phalanx");
    attachPage(new ServletPage(this, "", new RunListPage(store)));
    attachPage(new ServletPage(this, "run", new RunPage(store, Option.apply(questions))));
  }

  /**
   * Attaches the tab to a UI; whether that could be done. {@code questions} are null where there are no drivers to ask,
   * as at a history server.
   */
  static boolean attached(SparkUI ui, RunStore store, StacksQuestions questions) {
    Logger log = LoggerFactory.getLogger("dev.phalanx");
    try {
      String servlets = SparkVersions.servletsOfPages();
      if (!servlets.equals(ServletPage.SERVLETS)) {
        log.info("Spark's UI has no Phalanx tab: its pages take {}, not {}", servlets, ServletPage.SERVLETS);
        return false;
      }
      ui.attachTab(new PhalanxTab(ui, store, questions));
      if (questions != null) {
        StacksServlet.attachTo(ui, store, questions);
      }
      return true;
    } catch (RuntimeException | LinkageError problem) {
      log.info("Spark's UI has no Phalanx tab: {}", problem.toString());
      return false;
    }
  }
}
