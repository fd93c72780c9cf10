//! For tests only: waiting for conditions, looking at processes, and the proof that a test leaves nothing.
//!
//! Everything here panics where a test should fail.
#![forbid(unsafe_code)]

mod eventually;
mod guard;
mod leaks;
mod process;

pub use eventually::{eventually, eventually_some};
pub use guard::guard_binary;
pub use leaks::{Leaks, leaks};
pub use process::{Process, alive, children, descendants, processes};

/// A directory of this test's own, gone with the value. `what` is in its name.
pub fn temp_dir(what: &str) -> tempfile::TempDir {
    match tempfile::Builder::new().prefix(&format!("phalanx-test-{what}-")).tempdir() {
        Ok(directory) => directory,
        Err(error) => panic!("can't make a directory for {what}: {error}"),
    }
}
