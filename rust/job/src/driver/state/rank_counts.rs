//! How many processes of ranks there have been, in all attempts, as the hub heard of them.

use phalanx_types::Attempt;

/// Processes of ranks, in all attempts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct RankCounts {
    pub(super) started: u64,
    /// Of those, in an attempt after the first.
    pub(super) restarted: u64,
    /// Of those, as their nodes told; none of a node that was lost.
    pub(super) failed: u64,
}

impl RankCounts {
    pub(super) fn started(&mut self, attempt: Attempt) {
        self.started += 1;
        self.restarted += u64::from(!attempt.is_first());
    }

    pub(super) fn ended(&mut self, failed: bool) {
        self.failed += u64::from(failed);
    }
}
