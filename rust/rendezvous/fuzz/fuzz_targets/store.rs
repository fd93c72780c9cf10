//! Scripts of several clients against the store's state machine: `cargo +nightly fuzz run store`.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| phalanx_rendezvous::store::fuzz::play(script));
