//! What the tasks of a run take, where it says so: Spark's resource profile for them.
//!
//! JOB-27 (own-resources): a run that says what its tasks or ranks take has it, whatever the application's other tasks
//! take. Without dynamic allocation its tasks take it of the executors that are there; with it the run has executors of
//! its own, like the application's, and larger where its tasks need more. One that says what is so anyway has no
//! profile.
//! JOB-28 (never-there): what no executor has, or this Spark doesn't know, is refused with the setting that says it.
//! JOB-29 (whole-gpus): no two ranks of an application have a GPU in common. Spark before 4.0 counts the parts of the
//! application's GPUs for a run's own tasks, too, and is refused.

use phalanx_types::{Error, ErrorKind, Result};

use super::conf::{Conf, is_local, master, number};
use super::gang::is_dynamic;
use super::task_size::{
    CORES_MAX, EXECUTOR_CORES, EXECUTOR_GPUS, EXECUTOR_INSTANCES, TASK_CPUS, TASK_GPUS, amount, is_of,
    per_task, several, worker_cores,
};
use crate::settings::{GPUS_PER_RANK, MEMORY_PER_RANK, Resources, TASK_CPUS as OWN_TASK_CPUS};
use crate::units::bytes;

const GPU_SCRIPT: &str = "spark.executor.resource.gpu.discoveryScript";
const GPU_VENDOR: &str = "spark.executor.resource.gpu.vendor";
const MEMORY: &str = "spark.executor.memory";
const OVERHEAD: &str = "spark.executor.memoryOverhead";
const LEAST_OVERHEAD: &str = "spark.executor.minMemoryOverhead";
const OVERHEAD_FACTOR: &str = "spark.executor.memoryOverheadFactor";
const OVERHEAD_FACTOR_OF_PODS: &str = "spark.kubernetes.memoryOverheadFactor";

/// What [`profile`] wants to know of Spark's configuration, beside `GANG_KEYS`.
pub const PROFILE_KEYS: [&str; 16] = [
    TASK_CPUS,
    TASK_GPUS,
    EXECUTOR_CORES,
    EXECUTOR_GPUS,
    EXECUTOR_INSTANCES,
    CORES_MAX,
    GPU_SCRIPT,
    GPU_VENDOR,
    MEMORY,
    OVERHEAD,
    LEAST_OVERHEAD,
    OVERHEAD_FACTOR,
    OVERHEAD_FACTOR_OF_PODS,
    OWN_TASK_CPUS,
    GPUS_PER_RANK,
    MEMORY_PER_RANK,
];

/// As Spark's own default has it (`ResourceProfile.MEMORY_OVERHEAD_MIN_MIB`).
const LEAST_OVERHEAD_MIB: u64 = 384;
const MIB: u64 = 1 << 20;

/// A run that may want resources of its own.
#[derive(Debug, Clone, Copy)]
pub struct ProfileNeed<'a> {
    /// Whether its ranks have GPUs.
    pub use_gpu: bool,
    /// Whether they are on the driver's host, outside of any task.
    pub local_mode: bool,
    /// Whether its tasks are those of a DataFrame.
    pub of_dataframe: bool,
    /// The version of Spark.
    pub spark: &'a str,
    /// What is set of [`PROFILE_KEYS`] and of `GANG_KEYS`.
    pub conf: &'a Conf,
}

/// What each task of a run takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// How many cores.
    pub cpus: u32,
    /// How many GPUs.
    pub gpus: u32,
    /// Its executors, where it has some of its own.
    pub executors: Option<OwnExecutors>,
}

/// What each executor of a run's own has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnExecutors {
    /// How many cores.
    pub cores: u32,
    /// How many GPUs.
    pub gpus: u32,
    /// The program that says which these are; empty where the cluster manager does.
    pub gpu_script: String,
    /// Whose they are, for Kubernetes.
    pub gpu_vendor: String,
    /// How much memory it has beside the JVM's, in MiB; 0 for what the application's have.
    pub overhead_mib: u64,
}

impl Profile {
    /// Spark's configuration as it is for the run's tasks, where `conf` is the application's.
    pub(super) fn over(&self, conf: &Conf) -> Conf {
        let of_task = [(TASK_CPUS, self.cpus), (TASK_GPUS, self.gpus)];
        let of_executors =
            self.executors.iter().flat_map(|own| [(EXECUTOR_CORES, own.cores), (EXECUTOR_GPUS, own.gpus)]);
        let own =
            of_task.into_iter().chain(of_executors).map(|(key, number)| (key.into(), number.to_string()));
        conf.clone().into_iter().chain(own).collect()
    }
}

/// The resource profile of a run's tasks; `None` where they take what those of the application do.
///
/// # Errors
/// [`ErrorKind::State`] as JOB-28 and JOB-29 say; [`ErrorKind::Invalid`] for a setting that can't be read.
pub fn profile(need: &ProfileNeed<'_>) -> Result<Option<Profile>> {
    let conf = need.conf;
    let wish = Resources::read(conf)?;
    let Some(said) = wish.said() else { return Ok(None) };
    let master = master(conf);
    if need.local_mode {
        return refused(format!(
            "{said} is about Spark's tasks, and in local mode ranks are in none; unset it, or run on the cluster"
        ));
    }
    if wish.gpus_per_rank > 0 && !need.use_gpu {
        return refused(format!(
            "{GPUS_PER_RANK} is {}, but without GPUs (use_gpu) ranks have none; unset one of them",
            wish.gpus_per_rank
        ));
    }
    if is_local(master) {
        return refused(format!(
            "{said} is about Spark's executors, and with master {master} there is only the driver; unset it"
        ));
    }
    let of_application = amount(conf, TASK_GPUS).filter(|_| need.use_gpu).unwrap_or(0.0);
    let (ranks, gpus) = match wish.gpus_per_rank {
        0 => ((of_application as u32).max(1), of_application as u32),
        gpus => (1, gpus),
    };
    let cpus = if wish.task_cpus > 0 { wish.task_cpus } else { per_task(conf) };
    // Of a task's cores Spark 4.3 knows parts, too.
    let is_so_anyway =
        f64::from(cpus) == amount(conf, TASK_CPUS).unwrap_or(1.0) && f64::from(gpus) == of_application;
    if is_so_anyway && wish.memory_per_rank == 0 {
        return Ok(None);
    }
    check_spark(need, said, gpus)?;
    let executors = match is_dynamic(conf) {
        true => Some(own_executors(cpus, gpus, u64::from(ranks) * wish.memory_per_rank, conf)?),
        false => {
            check_memory(&wish, conf)?;
            check_offer(cpus, gpus, said, conf)?;
            None
        }
    };
    Ok(Some(Profile { cpus, gpus, executors }))
}

/// Whether this Spark knows profiles as the run needs one.
fn check_spark(need: &ProfileNeed<'_>, said: &str, gpus: u32) -> Result<()> {
    let (conf, spark, master) = (need.conf, need.spark, master(need.conf));
    let version = version(spark);
    let on_yarn_or_pods = is_of(master, &["yarn", "k8s://"]);
    if !on_yarn_or_pods && !is_of(master, &["spark://", "local-cluster["]) {
        return refused(format!(
            "{said} is set, but Spark knows no such thing with master {master}; unset it"
        ));
    }
    if need.of_dataframe && version < [4, 0, 0] {
        return refused(format!(
            "{said} is set, but the run's tasks are those of a DataFrame, for which Spark {spark} knows no such \
             thing; unset it, or take Spark 4.0 or later"
        ));
    }
    if is_dynamic(conf) {
        return Ok(());
    }
    if on_yarn_or_pods && version < [3, 5, 1] {
        return refused(format!(
            "{said} is set, but on YARN and Kubernetes Spark {spark} knows no such thing without dynamic allocation; \
             unset it, or take Spark 3.5.1 or later"
        ));
    }
    let parts = amount(conf, TASK_GPUS).filter(|amount| *amount < 1.0 && gpus > 0 && version < [4, 0, 0]);
    parts.map_or(Ok(()), |parts| {
        refused(format!(
            "{said} is set, but where {TASK_GPUS} is {parts} Spark {spark} gives several ranks the same GPU; take \
             Spark 4.0 or later, or set {TASK_GPUS} to a whole number"
        ))
    })
}

/// Whether an executor of the application has what a task takes, as far as the settings say what it has.
fn check_offer(cpus: u32, gpus: u32, said: &str, conf: &Conf) -> Result<()> {
    let cores = number(conf, EXECUTOR_CORES).or_else(|| worker_cores(master(conf)));
    if let Some(cores) = cores.filter(|cores| *cores < cpus) {
        return refused(format!(
            "each task of the run takes {}, but an executor has {cores}; lower {}, or raise \
             {EXECUTOR_CORES}",
            several(cpus, "core"),
            if said == OWN_TASK_CPUS { OWN_TASK_CPUS } else { TASK_CPUS }
        ));
    }
    let there = amount(conf, EXECUTOR_GPUS).unwrap_or(0.0);
    if f64::from(gpus) > there {
        return refused(format!(
            "each task of the run takes {}, but an executor has {there}; lower {GPUS_PER_RANK}, or raise {EXECUTOR_GPUS}",
            several(gpus, "GPU")
        ));
    }
    Ok(())
}

fn check_memory(wish: &Resources, conf: &Conf) -> Result<()> {
    if wish.memory_per_rank == 0 || is_dynamic(conf) && is_of(master(conf), &["yarn", "k8s://"]) {
        return Ok(());
    }
    refused(format!(
        "{MEMORY_PER_RANK} is set, but Spark gives a run's executors memory of their own only on YARN and Kubernetes \
         with dynamic allocation; unset it"
    ))
}

/// The executors of a run, whose tasks have ranks that take `memory` bytes together.
fn own_executors(cpus: u32, gpus: u32, memory: u64, conf: &Conf) -> Result<OwnExecutors> {
    let wish = Resources::read(conf)?;
    check_memory(&wish, conf)?;
    let text = |key| conf.get(key).cloned().unwrap_or_default();
    let (gpu_script, gpu_vendor) = (text(GPU_SCRIPT), text(GPU_VENDOR));
    let most = worker_cores(master(conf)).filter(|_| is_of(master(conf), &["local-cluster["]));
    if let Some(most) = most.filter(|most| *most < cpus) {
        return refused(format!(
            "each task of the run takes {}, but a worker has {most}; lower {OWN_TASK_CPUS}",
            several(cpus, "core")
        ));
    }
    if gpus > 0 && gpu_vendor.is_empty() && is_of(master(conf), &["k8s://"]) {
        return refused(format!(
            "executors with GPUs need {GPU_VENDOR} on Kubernetes; set it, e.g. to nvidia.com"
        ));
    }
    let cores = number(conf, EXECUTOR_CORES).or(most).unwrap_or(cpus).max(cpus);
    let has = if gpus == 0 { 0 } else { gpus.max(amount(conf, EXECUTOR_GPUS).unwrap_or(0.0) as u32) };
    let tasks = has.checked_div(gpus).map_or(cores / cpus, |by_gpus| by_gpus.min(cores / cpus));
    let overhead_mib =
        if memory == 0 { 0 } else { overhead_mib(conf) + (u64::from(tasks) * memory).div_ceil(MIB) };
    Ok(OwnExecutors { cores, gpus: has, gpu_script, gpu_vendor, overhead_mib })
}

/// What an executor of the application has beside the JVM's memory.
fn overhead_mib(conf: &Conf) -> u64 {
    // Where no unit is given, Spark takes them for MiB.
    let mib = |key| {
        let text = conf.get(key)?.trim().to_lowercase();
        text.parse().ok().or_else(|| bytes(&text).map(|bytes| bytes.div_ceil(MIB)))
    };
    let share = || {
        // Spark itself sets the latter, for a driver in Python that is a pod.
        let of_pods = || is_of(master(conf), &["k8s://"]).then(|| amount(conf, OVERHEAD_FACTOR_OF_PODS))?;
        let factor = amount(conf, OVERHEAD_FACTOR).or_else(of_pods).unwrap_or(0.1);
        let least = mib(LEAST_OVERHEAD).unwrap_or(LEAST_OVERHEAD_MIB);
        ((mib(MEMORY).unwrap_or(1024) as f64 * factor) as u64).max(least)
    };
    mib(OVERHEAD).unwrap_or_else(share)
}

/// The first three numbers of a version such as `3.5.1-vendor-2`.
fn version(text: &str) -> [u32; 3] {
    let mut numbers = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    std::array::from_fn(|_| numbers.next().unwrap_or(0))
}

fn refused<T>(sentence: String) -> Result<T> {
    Err(Error::new(ErrorKind::State, sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(set: &[(&str, &str)]) -> Conf {
        set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn of(set: &[(&str, &str)]) -> Result<Option<Profile>> {
        profile(&ProfileNeed {
            use_gpu: true,
            local_mode: false,
            of_dataframe: false,
            spark: "4.3.0",
            conf: &conf(set),
        })
    }

    #[test]
    fn memory_of_ranks_comes_on_top_of_the_executors_own() {
        let pods = [
            ("spark.master", "k8s://x"),
            ("spark.dynamicAllocation.enabled", "true"),
            (EXECUTOR_CORES, "4"),
            (MEMORY_PER_RANK, "2g"),
        ];
        for (more, mib) in [
            (vec![], 384 + 4 * 2048),
            (vec![(MEMORY, "8g")], 819 + 4 * 2048),
            (vec![(MEMORY, "8192"), (OVERHEAD_FACTOR, "0.5")], 4096 + 4 * 2048),
            (vec![(MEMORY, "8g"), (LEAST_OVERHEAD, "1g")], 1024 + 4 * 2048),
            (vec![(MEMORY, "8g"), (OVERHEAD_FACTOR_OF_PODS, "0.4")], 3276 + 4 * 2048),
            (vec![(OVERHEAD, "1g"), (OWN_TASK_CPUS, "2")], 1024 + 2 * 2048),
            (vec![(OVERHEAD, "1000"), (GPUS_PER_RANK, "1"), (GPU_VENDOR, "nvidia.com")], 1000 + 2048),
        ] {
            let set: Vec<_> = pods.into_iter().chain(more.clone()).collect();
            let own = of(&set).unwrap().unwrap().executors.unwrap();
            assert_eq!(own.overhead_mib, mib, "JOB-27: {more:?}");
        }
    }

    #[test]
    fn what_a_run_takes_stands_over_what_the_application_has() {
        let set = [
            ("spark.master", "yarn"),
            ("spark.dynamicAllocation.enabled", "true"),
            (TASK_GPUS, "0.25"),
            (GPUS_PER_RANK, "2"),
            (GPU_SCRIPT, "/opt/gpus"),
        ];
        let profile = of(&set).unwrap().unwrap();
        assert_eq!(profile.executors.as_ref().unwrap().gpu_script, "/opt/gpus");
        let over = profile.over(&conf(&set));
        let told = [TASK_CPUS, TASK_GPUS, EXECUTOR_CORES, EXECUTOR_GPUS].map(|key| over[key].as_str());
        assert_eq!((told, over[GPU_SCRIPT].as_str()), (["1", "2", "1", "2"], "/opt/gpus"), "JOB-27");
    }

    #[test]
    fn spark_before_4_0_gives_no_whole_gpus_where_it_gives_parts() {
        let set = [("spark.master", "spark://x:7077"), (EXECUTOR_GPUS, "1"), (TASK_GPUS, "0.25")];
        let mut conf = conf(&set);
        conf.insert(GPUS_PER_RANK.into(), "1".into());
        let of = |spark, use_gpu, conf: &Conf| {
            profile(&ProfileNeed { use_gpu, local_mode: false, of_dataframe: false, spark, conf })
        };
        assert!(
            of("3.5.9", true, &conf).unwrap_err().to_string().contains("gives several ranks the same GPU"),
            "JOB-29"
        );
        assert!(of("4.0.0", true, &conf).unwrap().is_some_and(|profile| profile.gpus == 1), "JOB-29");
        conf.insert("spark.dynamicAllocation.enabled".into(), "true".into());
        assert!(of("3.5.9", true, &conf).is_ok(), "JOB-29: executors of its own have whole ones");
        conf.insert(GPUS_PER_RANK.into(), "0".into());
        conf.insert(OWN_TASK_CPUS.into(), "2".into());
        assert!(of("3.5.9", false, &conf).is_ok());
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(version("3.5.0-amzn-1") < [3, 5, 1] && version("3.5.10") > [3, 5, 9]);
        assert_eq!((version("4.0"), version("4.1.0-preview1")), ([4, 0, 0], [4, 1, 0]));
    }
}
