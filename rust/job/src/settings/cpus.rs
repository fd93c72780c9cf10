//! What Spark's configuration says of cores.

use std::collections::BTreeMap;

use phalanx_types::CpuPolicy;

use super::LOCAL_MODE;

/// Keys of Spark's own from which the number of a rank's threads follows.
pub(super) const CPU_KEYS: [&str; 5] = [
    "spark.task.cpus",
    "spark.executorEnv.OMP_NUM_THREADS",
    "spark.driver.cores",
    "spark.yarn.appMasterEnv.OMP_NUM_THREADS",
    "spark.kubernetes.driverEnv.OMP_NUM_THREADS",
];

/// What Spark's configuration says of cores.
pub(super) fn read_cpus(conf: &BTreeMap<String, String>, cpus: &mut CpuPolicy) {
    let [task, executors, cores, yarn, kubernetes] = CPU_KEYS.map(|key| conf.get(key));
    cpus.per_task = task.and_then(|text| text.trim().parse().ok()).unwrap_or(1);
    cpus.user_says_on_executors = executors.is_some();
    cpus.user_says_on_driver = yarn.or(kubernetes).is_some();
    cpus.driver_cores = cores.cloned();
    cpus.local_mode = conf.get(LOCAL_MODE).is_some_and(|text| text == "true");
}
