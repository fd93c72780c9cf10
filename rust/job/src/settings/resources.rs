//! What a run's tasks take of their executors, and what the number of a rank's threads follows from.

use std::collections::BTreeMap;

use phalanx_types::{CpuPolicy, Result};

use super::{LOCAL_MODE, SETTINGS, Settings};

pub(crate) const TASK_CPUS: &str = "spark.phalanx.taskCpus";
pub(crate) const GPUS_PER_RANK: &str = "spark.phalanx.gpusPerRank";
pub(crate) const MEMORY_PER_RANK: &str = "spark.phalanx.memoryPerRank";

/// What each task and each rank of a run is to have; 0 for what the application has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resources {
    /// How many cores a task takes.
    pub task_cpus: u32,
    /// How many whole GPUs a rank has.
    pub gpus_per_rank: u32,
    /// How many bytes of memory a rank has, beside the executor's own.
    pub memory_per_rank: u64,
}

impl Resources {
    /// The settings of these.
    pub const KEYS: [&str; 3] = [TASK_CPUS, GPUS_PER_RANK, MEMORY_PER_RANK];

    /// Reads these settings alone.
    ///
    /// # Errors
    /// As [`Settings::read`].
    pub(crate) fn read(conf: &BTreeMap<String, String>) -> Result<Resources> {
        let mut settings = Settings::default();
        for setting in SETTINGS.iter().filter(|setting| Resources::KEYS.contains(&setting.key)) {
            if let Some(text) = conf.get(setting.key) {
                setting.read(text, &mut settings)?;
            }
        }
        Ok(settings.resources)
    }

    /// The setting of the first that is said.
    pub(crate) fn said(&self) -> Option<&'static str> {
        let said = [self.task_cpus > 0, self.gpus_per_rank > 0, self.memory_per_rank > 0];
        Resources::KEYS.into_iter().zip(said).find_map(|(key, said)| said.then_some(key))
    }
}

/// Keys of Spark's own from which the number of a rank's threads follows.
pub(super) const CPU_KEYS: [&str; 5] = [
    "spark.task.cpus",
    "spark.executorEnv.OMP_NUM_THREADS",
    "spark.driver.cores",
    "spark.yarn.appMasterEnv.OMP_NUM_THREADS",
    "spark.kubernetes.driverEnv.OMP_NUM_THREADS",
];

/// What the configuration says of cores.
pub(super) fn read_cpus(conf: &BTreeMap<String, String>, resources: &Resources, cpus: &mut CpuPolicy) {
    let [task, executors, cores, yarn, kubernetes] = CPU_KEYS.map(|key| conf.get(key));
    cpus.of_application = task.and_then(|text| text.trim().parse().ok()).unwrap_or(1);
    cpus.per_task = if resources.task_cpus > 0 { resources.task_cpus } else { cpus.of_application };
    cpus.user_says_on_executors = executors.is_some();
    cpus.user_says_on_driver = yarn.or(kubernetes).is_some();
    cpus.driver_cores = cores.cloned();
    cpus.local_mode = conf.get(LOCAL_MODE).is_some_and(|text| text == "true");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(set: &[(&str, &str)]) -> BTreeMap<String, String> {
        set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn cores_are_those_of_sparks_configuration_unless_a_run_says_how_many_its_tasks_take() {
        let mut set = vec![
            ("spark.task.cpus", "4"),
            ("spark.executorEnv.OMP_NUM_THREADS", "2"),
            ("spark.driver.cores", "3"),
        ];
        let cpus = Settings::read(&conf(&set)).unwrap().cpus;
        assert!(cpus.user_says_on_executors && !cpus.user_says_on_driver);
        assert_eq!((cpus.per_task, cpus.of_application), (4, 4));
        assert_eq!(cpus.driver_cores.as_deref(), Some("3"));
        set.push((TASK_CPUS, "2"));
        let cpus = Settings::read(&conf(&set)).unwrap().cpus;
        assert_eq!((cpus.per_task, cpus.of_application), (2, 4), "JOB-27");
    }

    #[test]
    fn the_first_that_is_said_is_named() {
        let read = |set: &[(&str, &str)]| Resources::read(&conf(set)).unwrap();
        assert_eq!(read(&[("spark.phalanx.grace", "never")]).said(), None);
        let memory = read(&[(MEMORY_PER_RANK, "4g"), (TASK_CPUS, "0")]);
        assert_eq!((memory.said(), memory.memory_per_rank), (Some(MEMORY_PER_RANK), 4 << 30));
        let said = Resources::read(&conf(&[(GPUS_PER_RANK, "0.5")])).unwrap_err().to_string();
        assert_eq!(said, "spark.phalanx.gpusPerRank is \"0.5\", but has to be a whole number, 0 or more");
    }
}
