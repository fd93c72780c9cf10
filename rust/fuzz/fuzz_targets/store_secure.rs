//! A node and the store of another host, and somebody on the way. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| phalanx_rendezvous::store::fuzz::meet(script));
