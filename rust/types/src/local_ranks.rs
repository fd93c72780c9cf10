//! Whose ranks count their local ranks together.

use serde::{Deserialize, Serialize};

/// Whose ranks are a local world, which `LOCAL_RANK`, `GROUP_RANK` and `CUDA_VISIBLE_DEVICES` are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LocalRanks {
    /// A task, as in pyspark and torchrun.
    #[default]
    Task,
    /// A host, with the ranks and GPUs of all its tasks.
    Host,
}

impl LocalRanks {
    /// All of them, by name.
    pub const ALL: [(&'static str, LocalRanks); 2] = [("task", LocalRanks::Task), ("host", LocalRanks::Host)];
}
