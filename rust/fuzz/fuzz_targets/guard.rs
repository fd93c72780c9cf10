//! What comes over a guard's control socket, in both directions. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_supervisor::fuzz::guard(bytes));
