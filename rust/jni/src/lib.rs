//! `libphalanx_jni`: the Rust core for the JVM. Each export unpacks, calls one function of the core, packs.
//!
//! The other side is the class `dev.phalanx.spark.jni.Native`, where the methods are documented.
//!
//! - BINDING-2 (one-exception): an error or a panic leaves an export only as the exception of its kind. What Java code
//!   threw that was called from here is thrown again as it was.
//! - BINDING-3 (stale-handles): a handle that is no longer good is an error.
//! - BINDING-4 (no-attaching): no thread of the core is ever attached to the JVM, and no reference outlives the call
//!   that made it.
//! - BINDING-19 (described): one export, `block_hash.rs`, reads the caller's memory, and only during its call. What is
//!   said of it is compared with itself first, and what contradicts itself is an error.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod block_hash;
mod callbacks;
mod errors;
mod exports;
mod handles;
mod hubs;
mod methods;
mod page;
mod preflight;
mod scoring;
mod values;
