package dev.phalanx.spark.internal

import java.nio.file.{Files, Paths}

/** This host's name as the kernel has it: what Python's `socket.gethostname()` says. Java's own way asks a resolver,
  * and may say another.
  */
private[spark] object HostName {
  def current: String = Files.readString(Paths.get("/proc/sys/kernel/hostname")).trim
}
