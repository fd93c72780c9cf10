//! What a run's tasks are to Spark, and what must be so for that.
//!
//! JOB-26 (one-or-each): under dynamic allocation Spark refuses barrier stages, and so a run's tasks are a Spark job
//! each there. Those that wait have Spark start executors; what can never start all of them is refused before. So is
//! data on executors that Spark takes away for being idle, whatever they have.

use std::time::Duration;

use phalanx_types::{Error, ErrorKind, Gang, Policy, Result};

use super::conf::{Conf, is_local, is_true, master, number};
use crate::units::time;

const DYNAMIC_ALLOCATION: &str = "spark.dynamicAllocation.enabled";
const ALLOCATION_RATIO: &str = "spark.dynamicAllocation.executorAllocationRatio";
const MAX_EXECUTORS: &str = "spark.dynamicAllocation.maxExecutors";
const SPECULATION: &str = "spark.speculation";
const SPECULATION_THRESHOLD: &str = "spark.speculation.task.duration.threshold";
const CACHED_TIMEOUT: &str = "spark.dynamicAllocation.cachedExecutorIdleTimeout";
const SHUFFLE_TIMEOUT: &str = "spark.dynamicAllocation.shuffleTracking.timeout";
const SHUFFLE_SERVICE: &str = "spark.shuffle.service.enabled";
/// What a distributor says beside the settings: whether executors have blocks of the run's data sets.
const EXECUTOR_BLOCKS: &str = "phalanx.executorBlocks";

/// Spark's own word for never is the most seconds that an `Int` has.
const NEVER: Duration = Duration::from_secs(i32::MAX as u64);

/// What is asked of Spark's configuration here, and of the distributor.
pub const GANG_KEYS: [&str; 10] = [
    "spark.master",
    DYNAMIC_ALLOCATION,
    ALLOCATION_RATIO,
    MAX_EXECUTORS,
    SPECULATION,
    SPECULATION_THRESHOLD,
    CACHED_TIMEOUT,
    SHUFFLE_TIMEOUT,
    SHUFFLE_SERVICE,
    EXECUTOR_BLOCKS,
];

/// What the tasks of a run are, whose number may change if it `is_elastic`; `wish` is what the settings say. In local
/// mode there are none.
pub(crate) fn gang(wish: Option<Gang>, is_elastic: bool, local_mode: bool, conf: &Conf) -> Gang {
    match wish {
        _ if local_mode => Gang::Barrier,
        Some(gang) => gang,
        None if is_dynamic(conf) || is_elastic => Gang::Tasks,
        None => Gang::Barrier,
    }
}

/// Whether Spark starts executors for tasks that wait. On a local master it has the driver alone.
pub(super) fn is_dynamic(conf: &Conf) -> bool {
    is_true(conf, DYNAMIC_ALLOCATION) && !is_local(master(conf))
}

/// Whether executors have blocks of the run's data sets.
pub(crate) fn has_executor_blocks(conf: &Conf) -> bool {
    is_true(conf, EXECUTOR_BLOCKS)
}

/// Whether this kind of gang can be on this cluster.
pub(super) fn check(policy: &Policy, conf: &Conf) -> Result<()> {
    match policy.gang {
        Gang::Barrier if policy.elastic.min_ranks > 0 => Err(refused(
            "spark.phalanx.gang is barrier, but the tasks of a barrier stage are always as many; set it to auto or \
             tasks, or give num_processes as one number"
                .into(),
        )),
        Gang::Barrier if is_dynamic(conf) => Err(refused(
            "spark.phalanx.gang is barrier, which Spark refuses under dynamic allocation; set it to auto or tasks, or \
             spark.dynamicAllocation.enabled to false with a fixed number of executors"
                .into(),
        )),
        // A task alone in its stage is not speculated about, unless this says after which time.
        Gang::Tasks if is_true(conf, SPECULATION) && conf.contains_key(SPECULATION_THRESHOLD) => {
            Err(refused(format!(
                "Spark would start the run's tasks a second time, because {SPECULATION} is true and \
                 {SPECULATION_THRESHOLD} is set; unset one of them"
            )))
        }
        Gang::Tasks if is_dynamic(conf) && has_executor_blocks(conf) => check_idle_timeouts(conf),
        Gang::Barrier | Gang::Tasks => Ok(()),
    }
}

/// Whether Spark leaves idle executors alone that have a block of a cached RDD. Of those that have shuffled rows as
/// well it looks at the shorter of two time-outs (`ExecutorMonitor.Tracker.updateTimeout`).
fn check_idle_timeouts(conf: &Conf) -> Result<()> {
    let tracks_shuffles = !is_true(conf, SHUFFLE_SERVICE);
    let timeouts = [(CACHED_TIMEOUT, "s", true), (SHUFFLE_TIMEOUT, "ms", tracks_shuffles)];
    for (key, unit, counts) in timeouts {
        let Some(text) = conf.get(key).map(|text| text.trim()).filter(|_| counts) else { continue };
        let unit = if text.ends_with(|c: char| c.is_ascii_digit()) { unit } else { "" };
        if time(&format!("{}{unit}", text.to_lowercase())).is_some_and(|limit| limit < NEVER) {
            return Err(refused(format!(
                "Spark would take executors away with the blocks of the run's data sets, because {key} is {text}; \
                 unset it, or keep the data in a shared place by phalanx.stored"
            )));
        }
    }
    Ok(())
}

/// Whether dynamic allocation can ever have so many tasks run at once, with `each` on an executor.
pub(super) fn check_executors(tasks: u32, each: u32, conf: &Conf) -> Result<()> {
    let executors = tasks.div_ceil(each.max(1));
    if let Some(most) = number(conf, MAX_EXECUTORS).filter(|most| *most < executors) {
        return Err(refused(format!(
            "the run needs {tasks} task slots at once, which are {executors} executors, but {MAX_EXECUTORS} is {most}; \
             raise it, or lower num_processes"
        )));
    }
    let ratio: f64 = conf.get(ALLOCATION_RATIO).and_then(|text| text.trim().parse().ok()).unwrap_or(1.0);
    // As `ExecutorAllocationManager.maxNumExecutorsNeededPerResourceProfile` has it.
    let asked_for = (f64::from(tasks) * ratio / f64::from(each.max(1))).ceil();
    if asked_for < f64::from(executors) {
        return Err(refused(format!(
            "the run needs {tasks} task slots at once, which are {executors} executors, but with \
             {ALLOCATION_RATIO}={ratio} Spark asks for {asked_for}; set it to 1"
        )));
    }
    Ok(())
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::State, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn conf(set: &[(&str, &str)]) -> Conf {
        let dynamic = [("spark.master", "yarn"), (DYNAMIC_ALLOCATION, "true")];
        dynamic.iter().chain(set).map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn the_cluster_says_what_a_gang_is_where_nobody_else_does() {
        assert_eq!(gang(None, false, false, &conf(&[])), Gang::Tasks);
        assert_eq!(gang(None, false, false, &conf(&[("spark.master", "local[4]")])), Gang::Barrier);
        let fixed = conf(&[(DYNAMIC_ALLOCATION, "false")]);
        assert_eq!(
            [false, true].map(|elastic| gang(None, elastic, false, &fixed)),
            [Gang::Barrier, Gang::Tasks]
        );
        for wish in [Gang::Barrier, Gang::Tasks] {
            assert_eq!(gang(Some(wish), true, false, &conf(&[])), wish, "JOB-26");
        }
        let local = Settings::read(&conf(&[("phalanx.localMode", "true")])).unwrap();
        assert_eq!(local.policy.gang, Gang::Barrier, "JOB-26");
    }

    #[test]
    fn data_on_executors_wants_these_to_stay_however_long_they_are_idle() {
        let policy = Policy { gang: Gang::Tasks, ..Policy::default() };
        let said = |set: &[(&str, &str)]| check(&policy, &conf(set)).map_err(|problem| problem.to_string());
        let data = (EXECUTOR_BLOCKS, "true");
        for (key, text, is_refused) in [
            (CACHED_TIMEOUT, "10min", true),
            (CACHED_TIMEOUT, "3600", true),
            (CACHED_TIMEOUT, "2147483647s", false),
            (CACHED_TIMEOUT, "2147483647", false),
            (SHUFFLE_TIMEOUT, "1h", true),
            (SHUFFLE_TIMEOUT, "600000", true),
            (SHUFFLE_TIMEOUT, "9223372036854775807", false),
        ] {
            let found = said(&[data, (key, text)]);
            assert_eq!(found.is_err(), is_refused, "JOB-26: {key} {text}");
            assert!(
                found.err().is_none_or(|why| why.contains(&format!("because {key} is {text}; unset it")))
            );
            assert_eq!(said(&[(key, text)]), Ok(()), "JOB-26: there is no data");
        }
        let service = (SHUFFLE_SERVICE, "true");
        assert_eq!(
            said(&[data, service, (SHUFFLE_TIMEOUT, "1h")]),
            Ok(()),
            "JOB-26: it has the shuffled rows"
        );
        assert_eq!(said(&[data, (DYNAMIC_ALLOCATION, "false"), (CACHED_TIMEOUT, "1h")]), Ok(()), "JOB-26");
    }

    #[test]
    fn what_can_never_start_all_tasks_is_refused_with_the_setting() {
        for (tasks, each, set, refused) in [
            (4, 2, (MAX_EXECUTORS, "2"), None),
            (
                5,
                2,
                (MAX_EXECUTORS, "2"),
                Some("which are 3 executors, but spark.dynamicAllocation.maxExecutors is 2"),
            ),
            (4, 1, (ALLOCATION_RATIO, "0.5"), Some("executorAllocationRatio=0.5 Spark asks for 2")),
            (3, 4, (ALLOCATION_RATIO, "0.5"), None),
            (1000, 4, (ALLOCATION_RATIO, "1"), None),
            (2, 0, (MAX_EXECUTORS, "2"), None),
        ] {
            let said = check_executors(tasks, each, &conf(&[set])).map_err(|problem| problem.to_string());
            match refused {
                None => assert_eq!(said, Ok(()), "JOB-26: {set:?}"),
                Some(why) => assert!(said.clone().unwrap_err().contains(why), "JOB-26: {said:?}"),
            }
        }
    }
}
