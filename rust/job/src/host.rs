//! The process that a node runs in, as the node sees it.

use std::time::Duration;

use phalanx_types::Result;

/// What the node asks of the process that it runs in.
pub trait NodeHost {
    /// Why the caller wants the node to end; asked every 50 ms.
    fn interrupted(&mut self) -> Option<String>;
    /// Exchanges a text with all tasks of the stage, in partition order (Spark's `allGather`).
    ///
    /// # Errors
    /// If there is no such exchange here, or it failed.
    fn all_gather(&mut self, text: &str) -> Result<Vec<String>>;
    /// Something that may be counted happened; for metrics. Called from the thread of [`run_node`].
    fn observe(&mut self, _what: Observation) {}
}

/// What can be counted of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Observation {
    /// The node knows its place, so long after it began.
    Joined(Duration),
    /// A rank's process runs, so long after the node began.
    RankStarted(Duration),
    /// The rank that starts now is one that an attempt before had, too.
    RankRestarted,
    /// A rank that had started is over.
    RankEnded {
        /// Whether it failed; being told to end is no failure.
        failed: bool,
    },
    /// Ranks wrote this much since the last such observation.
    Output {
        /// Ends of lines.
        lines: u64,
        /// Bytes.
        bytes: u64,
    },
}
