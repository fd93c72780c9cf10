//! What ranks that run together have in common.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of ranks with a world size, a store, keys, blocks and process groups of its own. The hub numbers them, and no
/// two of a job have the same number. It is no attempt: that counts how often a job's ranks were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(u64);

impl Generation {
    /// The one with this number.
    pub const fn new(number: u64) -> Generation {
        Generation(number)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
