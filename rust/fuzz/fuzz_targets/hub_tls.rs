//! A connection to the hub from its first byte on, and somebody on the way. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| phalanx_rendezvous::fuzz::tls(script));
