package dev.phalanx.spark.scoring

/** A model can't be had, or fails with rows. The text ends with the traceback of Python, and nothing of the JVM's
  * follows.
  */
final class PredictException private[scoring] (message: String) extends RuntimeException(message, null, false, false)
