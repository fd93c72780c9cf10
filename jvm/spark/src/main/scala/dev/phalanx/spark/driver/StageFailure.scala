package dev.phalanx.spark.driver

import dev.phalanx.spark.jni.Core

/** Why a Spark stage failed: what the Rust core makes of Spark's words.
  *
  * @param kind `cancelled` where somebody cancelled the Spark job (its group, its tag, its stage, or all jobs),
  *   `lost_node` where Spark names a lost executor, else `start`
  * @param sentence what the task threw, where that is in the text; else what Spark says
  */
final private[spark] case class StageFailure(kind: String, sentence: String) {
  def isCancellation: Boolean = kind == "cancelled"
  def isLostExecutor: Boolean = kind == "lost_node"
}

private[spark] object StageFailure {
  private val MaxCauses = 10

  def of(problem: Throwable): StageFailure = {
    val causes = Iterator.iterate(problem)(_.getCause).takeWhile(_ != null).take(MaxCauses)
    val said = causes.flatMap(one => Seq(one.getClass.getName, Option(one.getMessage).getOrElse("")))
    val failure = Core(_.explainStage(said.toArray))
    StageFailure(kind = failure(0), sentence = failure(1))
  }
}
