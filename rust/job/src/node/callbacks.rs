//! The process that a node runs in, as the node sees it.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use phalanx_types::{Error, ErrorKind, Result};

use crate::metric::MetricChange;

/// What a node asks of the process that it runs in, and tells it, in the thread that called [`crate::run_node`]. The
/// node waits for none of these calls.
pub trait NodeCallbacks {
    /// Why the caller wants the node to end; asked every 50 ms.
    fn interrupted(&mut self) -> Option<String>;
    /// These metrics changed.
    fn observed(&mut self, _changes: &[MetricChange]) {}
    /// The log of its own that the platform collects, if there is one: an executor's stdout or stderr, not a driver's.
    fn executor_log(&mut self) -> Option<OwnedFd> {
        None
    }
    /// Copies files to a folder that only this process can write to, by its URI. Bounds its own time.
    ///
    /// # Errors
    /// If it can't.
    fn copy_files(&mut self, _files: &[PathBuf], _folder: &str) -> Result<()> {
        Err(Error::new(ErrorKind::Unreachable, "only a JVM can write to a URI, and there is none here"))
    }
}
