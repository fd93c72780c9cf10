package dev.phalanx.spark.scoring

import java.util.concurrent.locks.ReentrantLock

/** What a task has to give back. It does so when it ends, at the latest, and never in the midst of its use.
  *
  * A task can end while another thread takes its rows: Spark 3.5 writes to Python workers from a thread that the end
  * of the task doesn't wait for, and so do later lines for programs (`pipe`, `TRANSFORM`, R). Then that thread gives
  * back what it used. The end of the task can't wait for it, since what it reads from may end only after this.
  */
final private[scoring] class Held {
  private val lock = new ReentrantLock
  @volatile private var over = false
  // The newest is the first.
  @volatile private var owned = List.empty[AutoCloseable]

  /** Whether nothing is to be used any more. */
  def isOver: Boolean = over

  /** Takes `made` in. The newest is given back first. */
  def own[A <: AutoCloseable](made: A): A = using {
    owned = made :: owned
    made
  }

  /** What `use` returns; nothing is given back meanwhile. */
  def using[A](use: => A): A = {
    lock.lock()
    try use
    finally leave()
  }

  /** Gives all back: at once, or when who uses it now is done. */
  def close(): Unit = {
    over = true
    if (lock.tryLock()) leave()
  }

  private def leave(): Unit = {
    try if (over && lock.getHoldCount == 1) closeAll()
    finally lock.unlock()
    // Whoever has called `close` since then did not get the lock.
    if (over && owned.nonEmpty && !lock.isHeldByCurrentThread && lock.tryLock()) leave()
  }

  private def closeAll(): Unit = owned match {
    case newest :: others =>
      owned = others
      try newest.close()
      finally closeAll()
    case Nil => ()
  }
}
