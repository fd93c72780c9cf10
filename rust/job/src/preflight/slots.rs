//! Task slots: how many a cluster can have, and how long a run waits for them.

use std::time::Duration;

use phalanx_types::{Error, ErrorKind, Result};

use super::conf::{Conf, is_local, number};
use super::gang::{check_executors, is_dynamic};
use super::profile::Profile;
use super::task_size::{
    CORES_MAX, EXECUTOR_CORES, EXECUTOR_GPUS, EXECUTOR_INSTANCES, TASK_CPUS, TASK_GPUS, amount, in_words,
    is_of, local_cluster, per_task, takes_gpus, threads, worker_cores,
};

const TIMEOUT: &str = "spark.phalanx.slots.timeout";

/// What [`look`] wants to know of Spark's configuration.
pub const SLOT_KEYS: [&str; 6] =
    [TASK_CPUS, EXECUTOR_CORES, EXECUTOR_INSTANCES, CORES_MAX, TASK_GPUS, EXECUTOR_GPUS];

/// How long until the next look.
const PAUSE: Duration = Duration::from_millis(100);

/// What a run waits for before its stage is submitted.
#[derive(Debug, Clone, Copy)]
pub struct SlotNeed<'a> {
    /// How many tasks have to run at the same time.
    pub tasks: u32,
    /// Spark's master.
    pub master: &'a str,
    /// What is set of [`SLOT_KEYS`].
    pub conf: &'a Conf,
    /// What they take, where that isn't what the application's take.
    pub profile: Option<&'a Profile>,
    /// How long they are waited for.
    pub timeout: Duration,
}

/// What a look at the slots says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Slots {
    /// The stage can be submitted.
    Enough,
    /// They are waited for.
    Wait {
        /// How long until the next look.
        pause: Duration,
        /// A line for the log.
        log: Option<String>,
    },
}

/// Whether there are slots enough, `waited` after the first look: the `looks`-th from 0 finds `there`, or can't tell,
/// as with Spark Connect.
///
/// # Errors
/// [`ErrorKind::State`] that says how many there are: at once where the number can't change (a local master) or can't
/// get there (the executors' number and cores are set, or dynamic allocation has a limit), else at the time-out
/// (JOB-15).
pub fn look(need: &SlotNeed<'_>, there: Option<u32>, waited: Duration, looks: u32) -> Result<Slots> {
    let SlotNeed { tasks, master, .. } = *need;
    let conf = &need.profile.map_or_else(|| need.conf.clone(), |profile| profile.over(need.conf));
    if is_dynamic(conf) {
        // Executors come for tasks that wait.
        return most_on_one(master, conf)
            .map_or(Ok(()), |each| check_executors(tasks, each, conf))
            .map(|()| Slots::Enough);
    }
    if there.is_some_and(|there| there >= tasks) {
        return Ok(Slots::Enough);
    }
    let limit = match there {
        Some(there) if is_local(master) => Some(there),
        None => threads(master).map(|threads| threads / per_task(conf)),
        Some(_) => None,
    };
    if let Some(most) = limit.or_else(|| most_slots(master, conf)).filter(|most| *most < tasks) {
        return Err(Error::new(
            ErrorKind::State,
            format!(
                "the run needs {tasks} task slots{} at once, but with master {master} there are \
                 never more than {most}; lower num_processes or give the application more {}",
                in_words(conf),
                if takes_gpus(conf) { "executors" } else { "cores" }
            ),
        ));
    }
    let Some(there) = there else { return Ok(Slots::Enough) };
    if waited >= need.timeout {
        let seconds = need.timeout.as_secs_f64();
        return Err(Error::new(
            ErrorKind::State,
            format!(
                "the run needs {tasks} task slots{} at once, but after {seconds} s the registered \
                 executors have {there}; lower num_processes, add executors, or raise {TIMEOUT}",
                in_words(conf)
            ),
        ));
    }
    let log =
        (looks == 0).then(|| format!("Waiting for executors: {there} of {tasks} task slots are available"));
    Ok(Slots::Wait { pause: PAUSE, log })
}

/// As [`look`], before a stage is submitted again: at the time-out it is submitted all the same, and what is missing
/// then is for Spark to say.
pub fn look_before_restart(tasks: u32, there: Option<u32>, waited: Duration, timeout: Duration) -> Slots {
    match there {
        Some(there) if there < tasks && waited < timeout => Slots::Wait { pause: PAUSE, log: None },
        _ => Slots::Enough,
    }
}

/// The most task slots that the application can ever have; `None` where that isn't known.
pub fn most_slots(master: &str, conf: &Conf) -> Option<u32> {
    if let Some((workers, cores)) = local_cluster(master) {
        let each = number(conf, EXECUTOR_CORES).unwrap_or(cores).max(1);
        return Some(if each <= cores { workers * (cores / each) * most_on_one(master, conf)? } else { 0 });
    }
    if is_of(master, &["yarn", "k8s://"]) {
        let each = most_on_one(master, conf)?;
        return number(conf, EXECUTOR_INSTANCES).map(|executors| executors.saturating_mul(each));
    }
    if is_of(master, &["spark://"]) {
        // Standalone doesn't care about the number of executors.
        return number(conf, CORES_MAX).map(|cores| cores / per_task(conf));
    }
    None
}

/// How many tasks an executor of this master has at once; `None` where it has all cores of whatever host it is on.
fn most_on_one(master: &str, conf: &Conf) -> Option<u32> {
    let by_cores = number(conf, EXECUTOR_CORES).or_else(|| worker_cores(master))? / per_task(conf);
    let by_gpus =
        amount(conf, EXECUTOR_GPUS).zip(amount(conf, TASK_GPUS)).map(|(has, takes)| (has / takes) as u32);
    Some(by_gpus.map_or(by_cores, |gpus| gpus.min(by_cores)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preflight::OwnExecutors;

    fn need<'a>(tasks: u32, master: &'a str, conf: &'a Conf) -> SlotNeed<'a> {
        SlotNeed { tasks, master, conf, profile: None, timeout: Duration::from_secs(20) }
    }

    #[test]
    fn where_nobody_tells_the_slots_the_settings_are_what_is_known() {
        let conf = Conf::new();
        for (master, most) in [
            ("local[3]", Some(3)),
            ("local[3,2]", Some(3)),
            ("local-cluster[2,1,1024]", Some(2)),
            ("local[*]", None),
        ] {
            let look = |tasks| look(&need(tasks, master, &conf), None, Duration::ZERO, 0);
            assert_eq!(look(most.unwrap_or(99)).unwrap(), Slots::Enough, "{master}");
            if let Some(most) = most {
                let said = look(most + 1).unwrap_err().to_string();
                assert!(said.contains(&format!("there are never more than {most};")), "{said}");
            }
        }
    }

    #[test]
    fn slots_are_waited_for_until_the_time_out_and_it_is_said_once() {
        let conf = Conf::new();
        let need = need(4, "yarn", &conf);
        let at = |seconds, looks| look(&need, Some(3), Duration::from_secs(seconds), looks);
        let line = "Waiting for executors: 3 of 4 task slots are available";
        assert_eq!(at(0, 0).unwrap(), Slots::Wait { pause: PAUSE, log: Some(line.into()) });
        assert_eq!(at(19, 190).unwrap(), Slots::Wait { pause: PAUSE, log: None });
        assert_eq!(at(20, 200).unwrap_err().kind(), ErrorKind::State, "JOB-15");
    }

    #[test]
    fn the_executors_that_a_run_needs_follow_from_their_cores_and_gpus_where_these_are_known() {
        for (master, set, each) in [
            ("yarn", vec![], Some(1)),
            ("yarn", vec![(EXECUTOR_CORES, "8"), (TASK_CPUS, "3")], Some(2)),
            ("yarn", vec![(EXECUTOR_CORES, "8"), (EXECUTOR_GPUS, "1"), (TASK_GPUS, "1")], Some(1)),
            ("yarn", vec![(EXECUTOR_CORES, "8"), (EXECUTOR_GPUS, "1"), (TASK_GPUS, "0.25")], Some(4)),
            ("spark://x:7077", vec![(EXECUTOR_CORES, "4")], Some(4)),
            ("spark://x:7077", vec![], None),
            ("local-cluster[2,3,1024]", vec![], Some(3)),
        ] {
            let conf = set.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            assert_eq!(most_on_one(master, &conf), each, "JOB-26: {master} {set:?}");
        }
    }

    #[test]
    fn slots_are_counted_as_the_runs_own_tasks_take_them() {
        let conf: Conf = [(TASK_GPUS, "0.25"), (EXECUTOR_GPUS, "1")]
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .into();
        let whole = Profile { cpus: 2, gpus: 1, executors: None };
        let need = SlotNeed { profile: Some(&whole), ..need(3, "local-cluster[2,4,1024]", &conf) };
        assert_eq!(look(&SlotNeed { tasks: 2, ..need }, Some(2), Duration::ZERO, 0).unwrap(), Slots::Enough);
        let said = look(&need, Some(2), Duration::ZERO, 0).unwrap_err().to_string();
        assert_eq!(
            said,
            "the run needs 3 task slots of 2 cores and 1 GPU at once, but with master local-cluster[2,4,1024] there \
             are never more than 2; lower num_processes or give the application more executors",
            "JOB-28"
        );
    }

    #[test]
    fn executors_of_a_runs_own_have_as_many_of_its_tasks_as_fit() {
        let conf: Conf = [
            ("spark.master", "yarn"),
            ("spark.dynamicAllocation.enabled", "true"),
            ("spark.dynamicAllocation.maxExecutors", "2"),
            (EXECUTOR_CORES, "1"),
        ]
        .map(|(key, value)| (key.to_string(), value.to_string()))
        .into();
        let (gpu_script, gpu_vendor) = (String::new(), String::new());
        let own = OwnExecutors { cores: 4, gpus: 0, gpu_script, gpu_vendor, overhead_mib: 0 };
        let profile = Profile { cpus: 2, gpus: 0, executors: Some(own) };
        let need = SlotNeed { profile: Some(&profile), ..need(4, "yarn", &conf) };
        assert_eq!(look(&need, Some(0), Duration::ZERO, 0).unwrap(), Slots::Enough, "JOB-27");
        let said = look(&SlotNeed { tasks: 5, ..need }, Some(0), Duration::ZERO, 0).unwrap_err().to_string();
        assert!(
            said.contains("which are 3 executors, but spark.dynamicAllocation.maxExecutors is 2"),
            "{said}"
        );
        let of_application = SlotNeed { profile: None, ..need };
        assert!(look(&of_application, Some(0), Duration::ZERO, 0).is_err(), "JOB-26: it has a task each");
    }

    #[test]
    fn a_stage_is_submitted_again_with_whatever_there_is_at_the_time_out() {
        let timeout = Duration::from_secs(20);
        let at = |there, seconds| look_before_restart(4, there, Duration::from_secs(seconds), timeout);
        assert_eq!(at(Some(3), 19), Slots::Wait { pause: PAUSE, log: None });
        assert_eq!(at(Some(3), 20), Slots::Enough);
        assert_eq!(at(Some(4), 0), Slots::Enough);
        assert_eq!(at(None, 0), Slots::Enough);
    }
}
