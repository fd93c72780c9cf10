//! Who comes from a Spark task: its process, and the task as Spark counts it.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Who comes from a Spark task. All but the instance are 0 where there is no Spark, as in local mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparkTask {
    /// A random number of the node, which another node that comes in its place has not.
    pub instance: u64,
    /// `TaskContext.stageId`.
    pub stage: u32,
    /// `TaskContext.taskAttemptId`: no two tasks of an application have the same, and later ones have larger ones.
    pub id: u64,
    /// `TaskContext.attemptNumber`: how many tasks of the partition Spark started before, in this try of the stage.
    pub number: u32,
    /// By what the hub knows its host again: [`host_digest`].
    pub host: u64,
}

/// What stands for the host of this name in a [`SparkTask`].
pub fn host_digest(name: &str) -> u64 {
    let digest = Sha256::digest(name.as_bytes());
    digest.iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

impl SparkTask {
    /// Whether it is of a later try of the stage, or of a later stage. Then Spark ends what `other` is of.
    pub fn supersedes(&self, other: &SparkTask) -> bool {
        // A try of a stage counts its tasks from 0 again; Python's task context doesn't tell the number of the try.
        let is_later_try = self.stage == other.stage && self.id > other.id && self.number <= other.number;
        self.stage > other.stage || is_later_try
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_supersedes_those_of_earlier_stages_and_tries_and_no_copy_of_itself() {
        let task = |stage, id, number| SparkTask { instance: id, stage, id, number, host: 0 };
        let first = task(3, 10, 0);
        for (later, is_later) in [
            (task(4, 12, 0), true),
            (task(3, 12, 0), true),
            (task(3, 12, 1), false),
            (task(2, 8, 0), false),
            (SparkTask::default(), false),
        ] {
            assert_eq!(later.supersedes(&first), is_later, "{later:?}");
            assert!(!(later.supersedes(&first) && first.supersedes(&later)), "{later:?}");
        }
        assert!(!SparkTask { instance: 1, ..SparkTask::default() }.supersedes(&SparkTask::default()));
    }
}
