//! What the number of a rank's threads follows from.

use serde::{Deserialize, Serialize};

/// What the number of a rank's threads follows from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CpuPolicy {
    /// How many cores a rank computes with; 0 for its share of what there is.
    pub per_rank: u32,
    /// How many cores Spark gives a task of the run.
    pub per_task: u32,
    /// How many it gives the application's other tasks, as it tells the processes that it starts.
    pub of_application: u32,
    /// Whether all ranks are on the driver's host, outside of any task.
    pub local_mode: bool,
    /// Whether Spark's configuration has `OMP_NUM_THREADS` for executors.
    pub user_says_on_executors: bool,
    /// Whether it has it for drivers.
    pub user_says_on_driver: bool,
    /// What Spark takes for a driver's number of cores, where it is set.
    pub driver_cores: Option<String>,
}

impl Default for CpuPolicy {
    fn default() -> Self {
        CpuPolicy {
            per_rank: 0,
            per_task: 1,
            of_application: 1,
            local_mode: false,
            user_says_on_executors: false,
            user_says_on_driver: false,
            driver_cores: None,
        }
    }
}
