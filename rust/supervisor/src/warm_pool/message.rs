//! What a client and its pool say to each other: one JSON text in each packet of a seqpacket socket.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a pool finds in `PHALANX_POOL` when it starts.
#[derive(Debug, Serialize)]
pub(super) struct Beginning<'a> {
    /// What it is to import.
    pub(super) imports: &'a [String],
    /// What it is to import when nobody needs it for a while.
    pub(super) later: &'a [String],
    /// It ends when it has had no job for so long.
    pub(super) idle_ms: u64,
    /// The variables that it was started with beyond its guard's, to be told from those that a launcher sets.
    pub(super) env: BTreeMap<&'a str, &'a str>,
}

/// To the pool.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Request {
    /// Fork a guard; its control socket and a pidfd of the client come along.
    Guard {
        /// The guard's grace.
        grace_ms: u64,
        /// As in [`Beginning`], from now on.
        idle_ms: u64,
        /// Whether the pidfd is that of the client's owner, to which the guard may be left.
        owned: bool,
    },
    /// This client won't ask any more; a pool that nobody else has a use for ends.
    Leave,
}

/// From the pool.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Answer {
    /// It has imported what there is.
    Ready {
        /// Its process id; only for looking.
        pid: u32,
        /// What could not be imported, each in a sentence.
        missing: Vec<String>,
    },
    /// A guard runs; its pidfd comes along.
    Forked {
        /// Its process id; only for looking.
        pid: u32,
    },
    /// It can't be forked from, and ends: why.
    Unfit(String),
}
