package dev.phalanx.spark.ui;

import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.JsonNode;
import org.apache.spark.scheduler.SparkListenerEvent;

/**
 * What a run was like at a moment, as an event of Spark's listener bus.
 *
 * <p>TAB-4 (file-format): Spark writes it into the event log as JSON under this class's name, so name and fields
 * are a file format. A later version only adds fields; what it doesn't know is ignored, and what is missing is null.
 *
 * <p>TAB-5 (any-java): a history server reads logs on the oldest Java and with either Scala: this class needs no
 * more than Java 8, and nothing of Scala's.
 */
@JsonIgnoreProperties(ignoreUnknown = true)
public final class RunEvent implements SparkListenerEvent {
  /** The version of the event around the snapshot, which has one of its own. */
  public static final int VERSION = 1;

  private final int version;
  private final JsonNode snapshot;
  private final boolean logged;

  /** An event that is `logged`, or only shown. */
  public RunEvent(JsonNode snapshot, boolean logged) {
    this(VERSION, snapshot, logged);
  }

  private RunEvent(int version, JsonNode snapshot, boolean logged) {
    this.version = version;
    this.snapshot = snapshot;
    this.logged = logged;
  }

  /** The event as it stands in a log. */
  @JsonCreator
  static RunEvent read(@JsonProperty("version") int version, @JsonProperty("snapshot") JsonNode snapshot) {
    return new RunEvent(version, snapshot, true);
  }

  @JsonProperty("version")
  public int version() {
    return version;
  }

  /** The run's snapshot, of `rust/types/src/run_snapshot.rs`. */
  @JsonProperty("snapshot")
  public JsonNode snapshot() {
    return snapshot;
  }

  /** Whether Spark writes it into the event log. */
  @Override
  public boolean logEvent() {
    return logged;
  }
}
