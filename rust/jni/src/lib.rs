//! `libphalanx_jni`: the Rust core for the JVM. Each export unpacks, calls one function of the core, packs.
