package dev.phalanx.spark.ui;

import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.util.JsonProtocol;

/** Events as Spark writes them into its event log and reads them there. */
final class SparkEvents {
  private SparkEvents() {}

  static SparkListenerEvent read(String line) {
    return JsonProtocol.sparkEventFromJson(line);
  }

  static String written(SparkListenerEvent event) {
    return JsonProtocol.sparkEventToJsonString(event);
  }
}
