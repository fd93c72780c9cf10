//! What a task and the process of a model say to each other. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_scoring::fuzz::packet(bytes));
