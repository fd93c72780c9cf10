//! How the number of ranks of a job may change while it runs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::millis;

/// How the number of ranks of a job may change while it runs. The unit is a task with its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElasticPolicy {
    /// The fewest ranks with which the job goes on; 0 for a job that always has all of them.
    pub min_ranks: u32,
    /// How long a job that has its fewest ranks waits for another task, from the last arrival on, before it begins and
    /// before it grows.
    #[serde(with = "millis")]
    pub patience: Duration,
    /// How long after a job has grown it doesn't grow again.
    #[serde(with = "millis")]
    pub cooldown: Duration,
}

impl Default for ElasticPolicy {
    fn default() -> Self {
        ElasticPolicy { min_ranks: 0, patience: Duration::from_secs(10), cooldown: Duration::from_secs(60) }
    }
}
