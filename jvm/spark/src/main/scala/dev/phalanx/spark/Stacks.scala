package dev.phalanx.spark

import scala.jdk.CollectionConverters._

/** What the threads of a run's ranks were doing, as Python's `faulthandler` writes it.
  *
  * {{{
  * println(run.stacks())      // equal stacks once, with their ranks: "ranks 0, 2-7:"
  * run.stacks().byRank(3)     // those of rank 3
  * }}}
  *
  * @param byRank the stacks of each rank that ran, or in parentheses why it has none
  */
final class Stacks private[spark] (val byRank: Map[Int, String], text: String) {
  def getByRank: java.util.Map[Integer, String] = byRank.map { case (rank, of) => Int.box(rank) -> of }.asJava

  override def toString: String = text
}
