//! Scripts of several clients against the store's state machine. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_rendezvous::store::fuzz::play(bytes));
