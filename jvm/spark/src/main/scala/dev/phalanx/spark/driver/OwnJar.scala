package dev.phalanx.spark.driver

import java.io.File
import java.net.URI

import scala.util.control.NonFatal

import org.apache.spark.SparkContext
import org.slf4j.LoggerFactory

/** The jar that has this class. */
private[spark] object OwnJar {
  private val log = LoggerFactory.getLogger("dev.phalanx")

  /** Adds the jar to the application where it is on the driver's class path only. */
  def ship(sc: SparkContext): Unit =
    if (jar != null && !sc.isLocal) {
      val names = sc.listJars().map(path => path.substring(path.lastIndexOf('/') + 1))
      if (!names.contains(jar.getName)) {
        log.info(s"Shipping ${jar.getName} to the executors")
        sc.addJar(jar.getPath)
      }
    }

  /** Null where this class is in a folder of classes. */
  private lazy val jar: File =
    try {
      val file = new File(new URI(getClass.getProtectionDomain.getCodeSource.getLocation.toString))
      if (file.isFile) file else null
    } catch { case NonFatal(_) => null }
}
