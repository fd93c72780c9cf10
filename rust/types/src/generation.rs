//! What ranks that run together have in common.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A set of ranks with a world size, a store, keys, blocks and process groups of its own. The hub numbers them, and no
/// two of a job have the same number. It is no attempt: that counts how often a job's ranks were started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(u64);

/// The first one's number, and how far the next is from it. Where debug assertions are on, as in tests, no generation
/// has the number of its attempt: nothing may take one for the other.
const FIRST: u64 = if cfg!(debug_assertions) { 3 } else { 0 };
const STEP: u64 = if cfg!(debug_assertions) { 7 } else { 1 };

impl Generation {
    /// The one with which a job begins.
    pub const fn first() -> Generation {
        Generation(FIRST)
    }

    /// The one that takes its place.
    #[must_use]
    pub const fn next(self) -> Generation {
        Generation(self.0 + STEP)
    }

    /// The one with this number.
    pub const fn new(number: u64) -> Generation {
        Generation(number)
    }

    /// Its number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
