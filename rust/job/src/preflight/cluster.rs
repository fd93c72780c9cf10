//! What a cluster has to be like before a distributed run is submitted to it.

use phalanx_types::{Error, ErrorKind, Result};

use super::conf::{Conf, is_local, is_true, master};
use super::encryption::plain;
use crate::settings::Settings;

const DYNAMIC_ALLOCATION: &str = "spark.dynamicAllocation.enabled";

/// What [`may_start`] wants to know of Spark's configuration.
pub const START_KEYS: [&str; 2] = ["spark.master", DYNAMIC_ALLOCATION];

/// Whether a distributed run may start on this cluster; `conf` is what is set of [`START_KEYS`] and of
/// [`crate::settings::keys`]. The answer is a warning, if there is one to log.
///
/// # Errors
/// [`ErrorKind::State`] where Spark would refuse the barrier stage because of dynamic allocation, and as
/// [`Settings::read`].
pub fn may_start(conf: &Conf) -> Result<Option<String>> {
    let settings = Settings::read(conf)?;
    if is_true(conf, DYNAMIC_ALLOCATION) && !is_local(master(conf)) {
        return Err(Error::new(
            ErrorKind::State,
            "distributed training needs all its executors at once, and Spark refuses that under dynamic \
             allocation; set spark.dynamicAllocation.enabled to false and fix the number of executors",
        ));
    }
    Ok(plain(settings.encryption, settings.allow_plain_gradients, settings.policy.encryption, conf))
}
