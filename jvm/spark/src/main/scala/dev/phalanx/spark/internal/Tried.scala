package dev.phalanx.spark.internal

/** One thing after the other, until one works. */
private[spark] object Tried {

  /** What `attempt` makes of the first of these for which it works; else what it says of each. Later ones are left
    * alone.
    */
  def first[A, B, C](from: Seq[A])(attempt: A => Either[C, B]): Either[Seq[C], B] = {
    val none: Either[Vector[C], B] = Left(Vector.empty)
    from.foldLeft(none) {
      case (Left(problems), next) => attempt(next).left.map(problems :+ _)
      case (found, _)             => found
    }
  }
}
