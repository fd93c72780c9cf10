package dev.phalanx.spark.jni

/** What the core needs of the task that waits for a model. Only the thread that is in `giveBatch` or `takeBatch`
  * calls it.
  */
private[spark] trait ModelCallbacks {

  /** Whether the task is still to go on. Asked every 50 ms. */
  def isWanted(): java.lang.Boolean

  /** A file with the model, which stays until the call returns. */
  def model(): String
}
