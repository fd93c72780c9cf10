package dev.phalanx.spark.ui;

import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.util.List;
import org.apache.spark.util.kvstore.KVIndex;

/** The newest that is known of a run, in Spark's store of what its UI shows. On a history server that may be a disk. */
@JsonIgnoreProperties(ignoreUnknown = true)
public final class StoredRun {
  /** The index of runs by when they began. */
  public static final String BY_START = "started";

  @KVIndex
  @JsonProperty("run")
  public final String run;

  /** Milliseconds since 1970. */
  @KVIndex(BY_START)
  @JsonProperty("started")
  public final long started;

  /** The newest snapshot, as JSON; empty before the first one. */
  @JsonProperty("snapshot")
  public final String snapshot;

  /** The ids of its stages, in their order. */
  @JsonProperty("stages")
  public final List<Integer> stages;

  /** Whether the application ended before the run did, as far as its events tell. */
  @JsonProperty("cut")
  public final boolean cut;

  @JsonCreator
  public StoredRun(
      @JsonProperty("run") String run,
      @JsonProperty("started") long started,
      @JsonProperty("snapshot") String snapshot,
      @JsonProperty("stages") List<Integer> stages,
      @JsonProperty("cut") boolean cut) {
    this.run = run;
    this.started = started;
    this.snapshot = snapshot;
    this.stages = stages;
    this.cut = cut;
  }
}
