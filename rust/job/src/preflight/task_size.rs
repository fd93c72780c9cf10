//! What a task takes and what an executor has, as far as Spark's configuration says.

use super::conf::{Conf, is_local, master, number};

pub(super) const TASK_CPUS: &str = "spark.task.cpus";
pub(super) const EXECUTOR_CORES: &str = "spark.executor.cores";
pub(super) const EXECUTOR_INSTANCES: &str = "spark.executor.instances";
pub(super) const CORES_MAX: &str = "spark.cores.max";
pub(super) const TASK_GPUS: &str = "spark.task.resource.gpu.amount";
pub(super) const EXECUTOR_GPUS: &str = "spark.executor.resource.gpu.amount";

/// The cores of an executor for which none are set; `None` where it has all of whatever host it is on.
pub(super) fn worker_cores(master: &str) -> Option<u32> {
    match local_cluster(master) {
        Some((_, cores)) => Some(cores),
        None => (!is_of(master, &["spark://"])).then_some(1),
    }
}

/// What [`executor_cores`] wants to know of Spark's configuration.
pub const CORES_KEYS: [&str; 2] = ["spark.master", EXECUTOR_CORES];

/// How many cores an executor has; `None` where it has all of whatever host it is on.
pub fn executor_cores(conf: &Conf) -> Option<u32> {
    let master = master(conf);
    if is_local(master) {
        return threads(master);
    }
    number(conf, EXECUTOR_CORES)
        .or_else(|| local_cluster(master).map(|(_, cores)| cores))
        .or_else(|| is_of(master, &["yarn", "k8s://"]).then_some(1))
}

/// N of `local[N]` and `local[N,FAILURES]`; `None` for `local[*]`, as many as the host has cores.
pub(super) fn threads(master: &str) -> Option<u32> {
    if master == "local" {
        return Some(1);
    }
    let inside = master.strip_prefix("local[")?.strip_suffix(']')?;
    inside.split(',').next()?.trim().parse().ok()
}

pub(super) fn per_task(conf: &Conf) -> u32 {
    number(conf, TASK_CPUS).unwrap_or(1).max(1)
}

/// What `key` is set to, which may be a fraction; `None` where that is no more than 0.
pub(super) fn amount(conf: &Conf, key: &str) -> Option<f64> {
    conf.get(key)?.trim().parse::<f64>().ok().filter(|amount| *amount > 0.0)
}

/// Whether a master is one of these kinds.
pub(super) fn is_of(master: &str, kinds: &[&str]) -> bool {
    kinds.iter().any(|kind| master.starts_with(kind))
}

/// Whether a task has whole GPUs.
pub(super) fn takes_gpus(conf: &Conf) -> bool {
    amount(conf, TASK_GPUS).is_some_and(|gpus| gpus >= 1.0)
}

/// A number of things, in words.
pub(super) fn several(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// What a slot is, where it is more than a core.
pub(super) fn in_words(conf: &Conf) -> String {
    let cores = several(per_task(conf), "core");
    match amount(conf, TASK_GPUS).filter(|_| takes_gpus(conf)) {
        Some(gpus) => format!(" of {cores} and {}", several(gpus as u32, "GPU")),
        None if per_task(conf) > 1 => format!(" of {cores}"),
        None => String::new(),
    }
}

/// Workers and cores of `local-cluster[WORKERS,CORES,MEMORY]`.
pub(super) fn local_cluster(master: &str) -> Option<(u32, u32)> {
    let inside = master.strip_prefix("local-cluster[")?.strip_suffix(']')?;
    let mut parts = inside.split(',').map(|part| part.trim().parse().ok());
    match (parts.next(), parts.next(), parts.next()) {
        (Some(Some(workers)), Some(Some(cores)), Some(_)) => Some((workers, cores)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_of_more_than_a_core_is_said() {
        for (set, words) in [
            (vec![], ""),
            (vec![(TASK_GPUS, "0.25")], ""),
            (vec![(TASK_CPUS, "4")], " of 4 cores"),
            (vec![(TASK_CPUS, "4"), (TASK_GPUS, "2")], " of 4 cores and 2 GPUs"),
            (vec![(TASK_GPUS, "1")], " of 1 core and 1 GPU"),
        ] {
            let conf = set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            assert_eq!(in_words(&conf), words);
        }
    }
}
