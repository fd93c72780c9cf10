//! What a cluster has to be like before a distributed run is submitted to it.

use phalanx_types::{Error, ErrorKind, Result};

use super::conf::{Conf, is_local, is_true, master};
use super::encryption::plain;
use crate::settings::Settings;

const DYNAMIC_ALLOCATION: &str = "spark.dynamicAllocation.enabled";

/// What [`may_start`] wants to know of Spark's configuration.
pub const START_KEYS: [&str; 2] = ["spark.master", DYNAMIC_ALLOCATION];

/// A distributed run that is about to start.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// Over how many tasks its ranks are spread.
    pub tasks: u32,
    /// What is set of [`START_KEYS`] and of [`crate::settings::keys`].
    pub conf: &'a Conf,
    /// How many partitions the DataFrame has that it trains on; `None` without one, and where that isn't known.
    pub partitions: Option<u32>,
}

/// Whether a run may start on this cluster; the answer is a warning, if there is one to log.
///
/// # Errors
/// [`ErrorKind::State`] where Spark would refuse the barrier stage because of dynamic allocation,
/// [`ErrorKind::Invalid`] where the DataFrame has another number of partitions than the run tasks, and as
/// [`Settings::read`].
pub fn may_start(start: &Start<'_>) -> Result<Option<String>> {
    let settings = Settings::read(start.conf)?;
    if is_true(start.conf, DYNAMIC_ALLOCATION) && !is_local(master(start.conf)) {
        return Err(Error::new(
            ErrorKind::State,
            "distributed training needs all its executors at once, and Spark refuses that under dynamic \
             allocation; set spark.dynamicAllocation.enabled to false and fix the number of executors",
        ));
    }
    match start.partitions {
        Some(count) if count != start.tasks => {
            let tasks = start.tasks;
            Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "_train_on_dataframe needs a partition for every task: the DataFrame has {count} and the run \
                     has {tasks}; use repartition({tasks})"
                ),
            ))
        }
        _ => Ok(plain(
            settings.encryption,
            settings.allow_plain_gradients,
            settings.policy.encryption,
            start.conf,
        )),
    }
}
