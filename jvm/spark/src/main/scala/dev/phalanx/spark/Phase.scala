package dev.phalanx.spark

/** A point in a run's life.
  *
  * {{{
  * result.phases.foreach(phase => println("%6.2f s  %s".format(phase.seconds, phase.name)))
  * }}}
  *
  * @param name `all joined`, `rank started`, `user code`, what the training code names by `phalanx.phase`, ...
  * @param rank `None` for the job's own phases
  * @param seconds since the run was asked for
  */
final case class Phase(name: String, rank: Option[Int], seconds: Double) {
  def getName: String = name

  /** As `rank`; null for `None`. */
  def getRank: Integer = rank.map(Int.box).orNull

  def getSeconds: Double = seconds
}
