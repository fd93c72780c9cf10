//! For tests only: waiting for conditions, looking at processes and at the log, the proof that a test leaves nothing, a
//! proxy that cuts connections, and nodes by the thousand.
//!
//! Everything here panics where a test should fail.
#![forbid(unsafe_code)]

mod build;
mod corpus;
mod eventually;
#[cfg(feature = "fleet")]
pub mod fleet;
mod leaks;
mod process;
mod proxy;
mod warnings;

pub use build::{guard_binary, program};
pub use corpus::play_corpus;
pub use eventually::{eventually, eventually_some};
pub use leaks::{Leaks, leaks};
pub use process::{Process, alive, children, descendants, processes};
pub use proxy::Proxy;
pub use warnings::warnings;

/// A directory of this test's own, gone with the value. `what` is in its name.
pub fn temp_dir(what: &str) -> tempfile::TempDir {
    match tempfile::Builder::new().prefix(&format!("phalanx-test-{what}-")).tempdir() {
        Ok(directory) => directory,
        Err(error) => panic!("can't make a directory for {what}: {error}"),
    }
}
