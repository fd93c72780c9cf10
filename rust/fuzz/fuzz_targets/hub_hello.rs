//! What a connection sends to the hub before it has proved itself. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_rendezvous::fuzz::hello(bytes));
