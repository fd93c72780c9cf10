package dev.phalanx.spark.ways

import org.apache.spark.{SparkContext, SparkEnv}

/** Has this application's Spark Connect server, should it have one, know Phalanx's commands. It reads the names of
  * their classes when a client first sends a command that isn't Spark's.
  */
private[spark] object ConnectCommands {
  private val Key = "spark.connect.extensions.command.classes"
  private val Plugin = "dev.phalanx.spark.connect.ConnectPlugin"

  /** Adds their class to the application's settings; those that the user has set stay. */
  def addTo(sc: SparkContext): Unit = {
    // The context's own, of which it gives away copies.
    val conf = SparkEnv.get.conf
    val there = conf.get(Key, "").split(',').map(_.trim).filter(_.nonEmpty)
    if (!there.contains(Plugin) && isPossible(sc)) conf.set(Key, (there :+ Plugin).mkString(",")): Unit
  }

  /** Before 4.0 plugins had another interface, and not every Spark has a server's classes. */
  private def isPossible(sc: SparkContext): Boolean =
    !sc.version.startsWith("3.") && (
      try {
        Class.forName(Plugin, false, getClass.getClassLoader)
        true
      } catch {
        case _: ClassNotFoundException | _: LinkageError => false
      }
    )
}
