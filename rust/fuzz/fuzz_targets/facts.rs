//! Facts of nodes, and time, against the state of a job. CONTRIBUTING.md says how it is run.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| phalanx_job::fuzz::facts(script));
