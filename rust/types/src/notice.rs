//! That a host is going to go, as a spot host does, or one whose executors are decommissioned: whoever knows it tells
//! the hub, and all ranks learn of it at the same step.

use serde::{Deserialize, Serialize};

/// What is known of a host that is going to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notice {
    /// In how many milliseconds it goes; `None` where nobody knows.
    pub in_ms: Option<u64>,
    /// Why, in a few words.
    pub reason: String,
}

/// How much of a reason is kept.
pub const MAX_REASON_BYTES: usize = 300;

/// What the ranks of a generation are told: from this step on all that is known of ranks that go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RankNotice {
    /// Its number; the ranks of a job are told of none twice.
    pub number: u32,
    /// The first step at which `phalanx.preempted` tells of it.
    pub step: u64,
    /// The hosts of the ranks that go, by name, each once.
    pub hosts: Vec<String>,
    /// These ranks, ascending.
    pub ranks: Vec<u32>,
    /// When the first of them goes, in milliseconds since 1970 by the driver's clock; `None` where nobody knows.
    pub deadline_ms: Option<u64>,
    /// Why the first of them goes.
    pub reason: String,
}
