package dev.phalanx.spark.ui;

import dev.phalanx.spark.internal.SparkInternals;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.status.ElementTrackingStore;
import org.apache.spark.ui.SparkUI;

/** What a history server needs for the tab; {@link PhalanxHistory} reaches it by name. */
public final class HistoryPages {
  private HistoryPages() {}

  /** What takes the runs of an event log into `store`. */
  public static SparkListener listenerOf(ElementTrackingStore store) {
    return RunStore.listener(new RunStore(store));
  }

  /** Attaches the tab to an application's UI if its log had runs. */
  public static void setUp(SparkUI ui) {
    RunStore store = new RunStore(SparkInternals.storeOf(ui));
    if (!store.isEmpty()) {
      PhalanxTab.attached(ui, store, null);
    }
  }
}
