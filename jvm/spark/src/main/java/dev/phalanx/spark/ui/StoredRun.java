package dev.phalanx.spark.ui;

import com.fasterxml.jackson.annotation.JsonCreator;
import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.annotation.JsonProperty;
import java.util.List;
import java.util.Map;
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

  /** The executor of each task that has started, by its partition; of the newest stage. */
  @JsonProperty("executors")
  public final Map<Integer, String> executors;

  /** Whether the application ended before the run did, as far as its events tell. */
  @JsonProperty("cut")
  public final boolean cut;

  /** A run of which only the id is known, and when it began. */
  StoredRun(String run, long started) {
    this(run, started, "", List.of(), Map.of(), false);
  }

  /** Whether this looks the same. */
  boolean isSame(StoredRun other) {
    return other == this
        || (snapshot.equals(other.snapshot)
            && stages.equals(other.stages)
            && executors.equals(other.executors)
            && cut == other.cut);
  }

  StoredRun withSnapshot(String newest, Map<Integer, String> executors) {
    return new StoredRun(run, started, newest, stages, executors, false);
  }

  StoredRun withStages(List<Integer> all) {
    return new StoredRun(run, started, snapshot, all, executors, cut);
  }

  StoredRun whenCut() {
    return new StoredRun(run, started, snapshot, stages, executors, true);
  }

  @JsonCreator
  public StoredRun(
      @JsonProperty("run") String run,
      @JsonProperty("started") long started,
      @JsonProperty("snapshot") String snapshot,
      @JsonProperty("stages") List<Integer> stages,
      @JsonProperty("executors") Map<Integer, String> executors,
      @JsonProperty("cut") boolean cut) {
    this.run = run;
    this.started = started;
    this.snapshot = snapshot;
    this.stages = stages;
    this.executors = executors == null ? Map.of() : executors;
    this.cut = cut;
  }
}
