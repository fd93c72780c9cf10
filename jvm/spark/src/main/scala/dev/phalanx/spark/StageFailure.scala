package dev.phalanx.spark

import org.apache.spark.SparkException

/** Why a Spark stage failed, in a sentence. */
private[spark] object StageFailure {
  private val Reason = "Most recent failure reason:"
  private val Thrown = """(?:[\w$]+\.)+([\w$]*(?:Exception|Error)): (.+)""".r
  private val MaxChars = 500

  /** Whether somebody cancelled the Spark job: its group, its tag, its stage, or all jobs. */
  def isCancellation(problem: Throwable): Boolean = causes(problem).exists {
    case spark: SparkException => spark.getCondition == "SPARK_JOB_CANCELLED"
    case _                     => false
  }

  /** What the task threw, where it is in the text of Spark's exception; else what Spark says. */
  def explain(problem: Throwable): String = {
    val text = Option(problem.getMessage).getOrElse(problem.toString)
    val lines = text.linesIterator.map(_.trim).filter(_.nonEmpty).toVector
    val thrown = lines.collectFirst {
      case Thrown("TrainingException", what) => what
      case Thrown(name, what)                => s"$name: $what"
    }
    // Spark's first line says that a barrier task failed, the next one why.
    val why = lines.headOption.filter(_.contains(Reason)).flatMap(_ => lines.lift(1))
    val sentence = thrown.orElse(why).orElse(lines.headOption).getOrElse(problem.getClass.getSimpleName)
    if (sentence.length > MaxChars) s"${sentence.take(MaxChars)}..." else sentence
  }

  private def causes(problem: Throwable): Iterator[Throwable] =
    Iterator.iterate(problem)(_.getCause).takeWhile(_ != null).take(10)
}
