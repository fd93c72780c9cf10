//! `libphalanx_jni`: the Rust core for the JVM. Each export unpacks, calls one function of the core, packs.
//!
//! The other side is the class `dev.phalanx.spark.Native`, where the methods are documented.
//!
//! JNI-1: no error and no panic leaves an export as anything but a `TrainingException`; what Java code threw that was
//! called from here is thrown again as it was. JNI-2: a handle that is no longer good is an error. JNI-3: no thread of
//! the core is ever attached to the JVM, and no reference outlives the call that made it.

mod errors;
mod exports;
mod host;
mod hubs;
mod values;
