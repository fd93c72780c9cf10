package dev.phalanx.spark.ui;

import dev.phalanx.spark.internal.SparkFit;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.status.AppHistoryServerPlugin;
import org.apache.spark.status.ElementTrackingStore;
import org.apache.spark.ui.SparkUI;
import org.slf4j.LoggerFactory;
import scala.collection.immutable.List;
import scala.collection.immutable.List$;

/**
 * The tab "Phalanx" of applications that a history server shows, from their event logs. The server finds this class by
 * itself, where the jar is on its class path.
 *
 * <p>TAB-1 (harmless): on a server on which the jar can't run, and for a log without runs, pages are as without the
 * jar. So this class needs no more than Java 8, and reaches the others by their names.
 */
public final class PhalanxHistory implements AppHistoryServerPlugin {
  @Override
  public List<SparkListener> createListeners(SparkConf conf, ElementTrackingStore store) {
    Object listener = called("listenerOf", ElementTrackingStore.class, store);
    List<SparkListener> none = List$.MODULE$.empty();
    return listener == null ? none : none.$colon$colon((SparkListener) listener);
  }

  @Override
  public void setupUI(SparkUI ui) {
    called("setUp", SparkUI.class, ui);
  }

  private static Object called(String name, Class<?> type, Object argument) {
    String problem = SparkFit.problem();
    if (problem == null) {
      try {
        return Class.forName("dev.phalanx.spark.ui.HistoryPages").getMethod(name, type).invoke(null, argument);
      } catch (ReflectiveOperationException | LinkageError thrown) {
        problem = SparkFit.unlinked(thrown);
      }
    }
    LoggerFactory.getLogger("dev.phalanx").info(problem + "; applications are shown without Phalanx's tab");
    return null;
  }
}
