//! What a node goes by.

use std::time::Duration;

use phalanx_types::{NodeSpec, Policy};

use crate::node::line::SEND_TIMEOUT;
use crate::node::process::INTERRUPT_EVERY;

/// How often a node tells what its ranks do where they have no news.
const ACTIVITY_EVERY: Duration = Duration::from_secs(5);

/// What a node goes by.
#[derive(Debug, Clone)]
pub(crate) struct Rules {
    /// How long the hub may take to give it its place. The hub has the deadline for joining; this one is for a hub that
    /// hangs.
    pub(super) place_within: Duration,
    /// How long a disk may take for the files that ranks begin with.
    pub(super) files_within: Duration,
    /// How long the hub may take to hear all output, once it is complete.
    pub(super) drain_timeout: Duration,
    /// How often the hub is told what ranks do, if they report nothing.
    pub(super) activity_every: Duration,
    /// Whether ranks of other hosts read what this one has.
    pub(super) has_data: bool,
}

impl Rules {
    /// Those of a job.
    pub(crate) fn of(spec: &NodeSpec) -> Rules {
        let (job, policy) = (&spec.job, &spec.job.policy);
        Rules {
            place_within: policy.join_limit() + SEND_TIMEOUT,
            files_within: policy.join_timeout,
            drain_timeout: job.logs.drain_timeout,
            activity_every: activity_every(policy),
            has_data: !job.data_folder.is_empty(),
        }
    }
}

/// Several times within a time-out for hangs.
fn activity_every(policy: &Policy) -> Duration {
    if policy.hang_timeout.is_zero() {
        ACTIVITY_EVERY
    } else {
        (policy.hang_timeout / 8).clamp(INTERRUPT_EVERY, ACTIVITY_EVERY)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use phalanx_types::{Attempt, Gang, Generation, Job, RankProgram};

    use super::*;

    #[test]
    fn a_node_waits_for_its_place_for_longer_than_the_hub_lets_tasks_join() {
        for gang in [Gang::Barrier, Gang::Tasks] {
            let mut job = Job::new("place", "t", 1, 1).unwrap();
            job.policy.gang = gang;
            let limit = job.policy.join_limit();
            let spec = NodeSpec {
                phalanx: String::new(),
                job,
                hub: String::new(),
                hub_key: Vec::new(),
                token: [0; 32],
                attempt: Attempt::first(),
                generation: Generation::first(),
                program: RankProgram::Command(Vec::new()),
                env: BTreeMap::new(),
                local_gpus: Vec::new(),
            };
            assert!(Rules::of(&spec).place_within > limit, "{gang:?}");
        }
    }

    #[test]
    fn what_ranks_do_is_told_eight_times_in_a_time_out_for_hangs_and_every_5_s_at_least() {
        for (hang_timeout_ms, every_ms) in
            [(0, 5000), (100, 50), (4000, 500), (40_000, 5000), (600_000, 5000)]
        {
            let policy = Policy { hang_timeout: Duration::from_millis(hang_timeout_ms), ..Policy::default() };
            assert_eq!(activity_every(&policy), Duration::from_millis(every_ms), "{hang_timeout_ms} ms");
        }
    }
}
