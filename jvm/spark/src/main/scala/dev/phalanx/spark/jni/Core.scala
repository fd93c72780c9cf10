package dev.phalanx.spark.jni

/** The way to the Rust core: loads it at the first call, and hands on its log records after each call.
  *
  * JAR-12 (no-upcalls): log records of the core reach slf4j in threads of the JVM. The core's own threads never enter
  * the JVM.
  */
private[spark] object Core {
  def apply[A](call: Native => A): A = {
    val native = NativeLibrary.native
    try call(native)
    finally CoreLog.handOver(native)
  }
}
