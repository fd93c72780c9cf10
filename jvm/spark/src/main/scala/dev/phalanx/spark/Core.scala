package dev.phalanx.spark

/** The way to the Rust core: loads it at the first call, and hands its log records on after each.
  *
  * CORE-1: log records of the core reach slf4j in threads of the JVM; the core's own threads never enter it.
  */
private[spark] object Core {
  def apply[A](call: Native => A): A = {
    val native = NativeLibrary.native
    try call(native)
    finally CoreLog.handOver(native)
  }
}
