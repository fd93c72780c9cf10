//! How many threads a rank computes with.
//!
//! - NODE-37 (users-word): what the user's environment says wins. Spark sets `OMP_NUM_THREADS` by itself, too, which
//!   is no word of the user's: where `spark.executorEnv.OMP_NUM_THREADS` isn't set, in Python workers and, to
//!   `spark.task.cpus`, in executors (SPARK-41188); and in drivers in Python that spark-submit starts with
//!   `spark.driver.cores`.
//! - NODE-38 (share): else a rank has `cpus_per_rank`, or else its share of its task's cores, in local mode of the
//!   host's; one at the least.

use phalanx_types::CpuPolicy;

/// The variable by which spark-submit tells a driver in Python where its JVM is.
const GATEWAY: &str = "PYSPARK_GATEWAY_PORT";

/// How many threads each rank has, unless the user's environment says.
pub(crate) fn threads_of_rank(cpus: &CpuPolicy, ranks_of_task: usize, host_cores: usize) -> u32 {
    let cores = if cpus.local_mode { u32::try_from(host_cores).unwrap_or(u32::MAX) } else { cpus.per_task };
    let ranks = u32::try_from(ranks_of_task.max(1)).unwrap_or(u32::MAX);
    if cpus.per_rank > 0 { cpus.per_rank } else { (cores / ranks).max(1) }
}

/// How many threads a rank with a task to itself will have, unless `set`, what this process has, is the user's word.
pub(crate) fn threads_ahead(cpus: &CpuPolicy, set: Option<&str>) -> Option<u32> {
    let is_said = set.is_some_and(|value| !is_sparks(cpus, false, value));
    (!is_said).then(|| threads_of_rank(cpus, 1, 1))
}

/// The cores that this process may use: of its processors, and of what its container lets it have.
pub(crate) fn host_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Whether `value`, the `OMP_NUM_THREADS` of this process, was set by Spark and not by the user.
pub(crate) fn is_sparks(cpus: &CpuPolicy, in_python_worker: bool, value: &str) -> bool {
    if in_python_worker {
        return !cpus.user_says_on_executors;
    }
    if !cpus.local_mode {
        return !cpus.user_says_on_executors && value == cpus.of_application.to_string();
    }
    let submitted = std::env::var_os(GATEWAY).is_some();
    submitted && !cpus.user_says_on_driver && cpus.driver_cores.as_deref() == Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_has_its_share_of_its_task_or_of_the_drivers_host() {
        for (per_task, threads) in [(1, 1), (2, 1), (5, 2), (8, 4)] {
            let cpus = CpuPolicy { per_task, ..CpuPolicy::default() };
            assert_eq!(threads_of_rank(&cpus, 2, 64), threads, "NODE-38: {per_task}");
        }
        let cpus = CpuPolicy { per_rank: 3, ..CpuPolicy::default() };
        assert_eq!(threads_of_rank(&cpus, 2, 64), 3);
        let local = CpuPolicy { local_mode: true, ..CpuPolicy::default() };
        assert_eq!((threads_of_rank(&local, 4, 64), threads_of_rank(&local, 4, 2)), (16, 1), "NODE-38");
    }

    #[test]
    fn a_pool_that_starts_before_a_run_has_the_threads_of_its_ranks() {
        let mut cpus = CpuPolicy { of_application: 1, per_task: 4, ..CpuPolicy::default() };
        assert_eq!(threads_ahead(&cpus, None), Some(4), "NODE-38");
        assert_eq!(
            threads_ahead(&cpus, Some("1")),
            Some(4),
            "NODE-37: Spark's word is for the application's tasks"
        );
        assert_eq!(threads_ahead(&cpus, Some("3")), None, "NODE-37: somebody else's");
        cpus.per_rank = 2;
        assert_eq!(threads_ahead(&cpus, Some("1")), Some(2), "NODE-38");
        cpus.user_says_on_executors = true;
        assert_eq!(threads_ahead(&cpus, Some("1")), None, "NODE-37");
    }

    #[test]
    fn what_spark_sets_is_told_from_what_the_user_sets() {
        let mut cpus = CpuPolicy::default();
        assert!(is_sparks(&cpus, true, "1"), "NODE-37: a Python worker");
        (cpus.of_application, cpus.per_task) = (2, 4);
        assert!(is_sparks(&cpus, false, "2"), "NODE-37: an executor's JVM");
        assert!(!is_sparks(&cpus, false, "4"), "a run's own cores are told to no executor");
        assert!(!is_sparks(&cpus, false, "1"), "its machine says something else");
        cpus.user_says_on_executors = true;
        assert!(!is_sparks(&cpus, true, "2") && !is_sparks(&cpus, false, "2"), "NODE-37: spark.executorEnv");
        cpus.local_mode = true;
        assert!(!is_sparks(&cpus, false, "2"), "the driver's user says so");
    }
}
