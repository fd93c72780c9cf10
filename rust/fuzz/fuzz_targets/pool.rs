//! What a warm pool answers. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_supervisor::fuzz::pool(bytes));
