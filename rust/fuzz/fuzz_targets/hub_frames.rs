//! What nodes and hub send each other afterwards. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_rendezvous::fuzz::frames(bytes));
