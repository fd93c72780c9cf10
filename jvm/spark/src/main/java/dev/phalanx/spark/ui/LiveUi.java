package dev.phalanx.spark.ui;

import dev.phalanx.spark.internal.SparkInternals;
import org.apache.spark.SparkContext;
import org.apache.spark.ui.SparkUI;

/** The tab of an application that runs. */
public final class LiveUi {
  private LiveUi() {}

  /** Attaches the tab to the UI of an application that starts, if it has one, and keeps the tab's runs up to date. */
  public static void attachTo(SparkContext context) {
    SparkUI ui = SparkInternals.ui(context);
    if (ui == null) {
      return;
    }
    RunStore store = new RunStore(SparkInternals.storeOf(ui));
    if (PhalanxTab.attached(ui, store, StacksQuestions.ofApplication())) {
      context.addSparkListener(RunStore.listener(store));
    }
  }
}
