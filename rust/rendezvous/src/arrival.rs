//! How much of a rank's result has arrived, over one connection after the other.

use phalanx_types::Attempt;

/// By what the writer knows a result that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ResultKey {
    pub(crate) rank: u32,
    /// Never used twice.
    pub(crate) number: u64,
}

/// A result that arrives. It isn't copied: whoever has it, a connection or the hub between two of them, is the only one
/// that adds to it.
#[derive(Debug, Default)]
pub(crate) struct Arrival {
    /// None if it is passed over.
    pub(crate) key: Option<ResultKey>,
    attempt: Attempt,
    upload: u64,
    bytes: u64,
    left: u64,
}

impl Arrival {
    /// One of which nothing has arrived.
    pub(crate) fn new(key: ResultKey, attempt: Attempt, upload: u64, bytes: u64) -> Arrival {
        Arrival { key: Some(key), attempt, upload, bytes, left: bytes }
    }

    /// One that nobody wants.
    pub(crate) fn passed_over(attempt: Attempt, bytes: u64) -> Arrival {
        Arrival { attempt, bytes, left: bytes, ..Arrival::default() }
    }

    /// Whether somebody who comes with this brings more of it.
    pub(crate) fn is_of(&self, attempt: Attempt, upload: u64, bytes: u64) -> bool {
        (self.attempt, self.upload, self.bytes) == (attempt, upload, bytes)
    }

    pub(crate) fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// How many bytes of it have arrived.
    pub(crate) fn received(&self) -> u64 {
        self.bytes - self.left
    }

    /// So many more have; false if it doesn't have so many.
    pub(crate) fn take(&mut self, count: usize) -> bool {
        let left = self.left.checked_sub(count as u64);
        self.left = left.unwrap_or(self.left);
        left.is_some()
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.left == 0
    }
}
