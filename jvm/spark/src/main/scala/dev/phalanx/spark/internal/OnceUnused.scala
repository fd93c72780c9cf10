package dev.phalanx.spark.internal

import java.lang.ref.Cleaner

/** What is done once nothing refers to an object any more: soon after the JVM's garbage collector finds it so, which
  * Spark's own cleaner has run every half hour at least (`spark.cleaner.periodicGC.interval`). One thread does it
  * all.
  */
private[spark] object OnceUnused {
  private lazy val cleaner = Cleaner.create()

  /** `action` may not refer to `owner`, which would never be unused. */
  def apply(owner: AnyRef)(action: => Unit): Unit = cleaner.register(owner, () => action): Unit
}
