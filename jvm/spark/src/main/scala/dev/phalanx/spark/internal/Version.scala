package dev.phalanx.spark.internal

import java.util.Properties

/** The version of this jar. */
private[spark] object Version {
  private val properties: Properties = {
    val found = new Properties
    val stream = getClass.getResourceAsStream("/phalanx.properties")
    if (stream != null)
      try found.load(stream)
      finally stream.close()
    found
  }

  val phalanx: String = properties.getProperty("version", "unknown")
}
