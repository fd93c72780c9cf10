package dev.phalanx.spark.feeding;

import org.apache.spark.SparkEnv;
import org.apache.spark.storage.RDDBlockId;

/** What Spark's driver knows of cached RDDs, which Scala hides. */
public final class CachedBlocks {
  private CachedBlocks() {}

  /** Whether an executor has this block. */
  public static boolean isThere(int rdd, int partition) {
    return SparkEnv.get().blockManager().master().contains(new RDDBlockId(rdd, partition));
  }
}
