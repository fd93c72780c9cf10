package dev.phalanx.spark

/** How one rank ended, or what it was doing when the training failed.
  *
  * {{{
  * result.ranks.foreach(outcome => println((outcome.rank, outcome.host, outcome.state)))
  * }}}
  *
  * @param rank the rank
  * @param host its host; empty while not known
  * @param state in words: `finished`, `stopped`, `raised RuntimeError: ...`, `exited with code 3`
  * @param idleSeconds how long before the end of the training it last wrote output; `None` if it never did
  * @param doing what it was doing before the ranks were ended, as far as is known: a collective operation; else empty
  */
final case class RankOutcome(
    rank: Int,
    host: String,
    state: String,
    idleSeconds: Option[Double],
    doing: String = ""
) extends Serializable {
  def getRank: Int = rank
  def getHost: String = host
  def getState: String = state
  def getDoing: String = doing

  /** As `idleSeconds`; null for `None`. */
  def getIdleSeconds: java.lang.Double = idleSeconds.map(Double.box).orNull
}
