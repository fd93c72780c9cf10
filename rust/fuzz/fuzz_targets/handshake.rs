//! What connects to a rank, and what another one says afterwards. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| phalanx_collective::fuzz::stranger(bytes));
