//! Which guard a node's ranks get: one that was forked from a warm pool, or a cold one.
//!
//! WARM-1: whatever keeps ranks from being warm is told in one line, and they start cold.

use std::collections::BTreeMap;
use std::time::Duration;

use phalanx_supervisor::pool::{PoolOptions, prestart, shapes, warm_guard};
use phalanx_supervisor::{Guard, GuardOptions};
use phalanx_types::{Deadline, Job, NodePlacement, RankPlace, Result, WarmPolicy};

use crate::environment::rank_environment;
use crate::host::NodeHost;
use crate::link::Link;
use crate::node::NodeOptions;

/// How long a run waits for a pool that is being started. Ranks that start cold import the same, each for itself.
const POOL_TIMEOUT: Duration = Duration::from_secs(60);

/// What every pool imports.
const IMPORTS: [&str; 4] = ["torch", "torch.distributed", "numpy", "cloudpickle"];

/// The guard of this node's ranks. May wait for a pool, and answers the hub and the host meanwhile.
pub(crate) fn guard_for(
    options: &NodeOptions,
    placement: &NodePlacement,
    link: &mut Link<'_>,
    host: &mut dyn NodeHost,
) -> Result<Guard> {
    let (job, grace) = (&options.job, options.job.policy.grace);
    if job.warm.enabled && !options.pool.is_empty() {
        let pool = PoolOptions {
            guard: options.guard.clone(),
            program: options.pool.clone(),
            env: in_common(job, placement, &options.env),
            shared: options.shares_pool,
            ..what_pool(&job.warm)
        };
        let mut go_on = || {
            link.tend();
            host.interrupted().is_none() && link.given_up().is_none()
        };
        match warm_guard(&pool, grace, Deadline::after(POOL_TIMEOUT), &mut go_on) {
            Ok(guard) => return Ok(guard),
            Err(why) => {
                log::warn!("job {}: the ranks of partition {} start cold: {why}", job.id, options.partition);
            }
        }
    }
    Guard::spawn(&GuardOptions { binary: options.guard.clone(), grace })
}

/// Starts the pool of a run with these options in the background: one of several ranks on this host.
pub fn prestart_pool(
    warm: &WarmPolicy,
    guard: std::path::PathBuf,
    program: Vec<String>,
    env: &BTreeMap<String, String>,
) {
    if warm.enabled && !program.is_empty() {
        let of_several = [("OMP_NUM_THREADS".to_string(), "1".to_string())];
        let unset = of_several.into_iter().filter(|(name, _)| std::env::var_os(name).is_none());
        let env = unset.chain(env.iter().map(|(name, value)| (name.clone(), value.clone())));
        let env: BTreeMap<String, String> = env.filter(|(name, _)| shapes(name)).collect();
        prestart(&PoolOptions { guard, program, env: env.into_iter().collect(), ..what_pool(warm) });
    }
}

fn what_pool(warm: &WarmPolicy) -> PoolOptions {
    let imports = IMPORTS.into_iter().map(String::from).chain(warm.imports.iter().cloned()).collect();
    PoolOptions { imports, idle_timeout: warm.idle_timeout, ..PoolOptions::default() }
}

/// What all ranks of a node have, as far as imports depend on it.
fn in_common(job: &Job, placement: &NodePlacement, env: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let is_set = |name: &str| env.contains_key(name) || std::env::var_os(name).is_some();
    let place = placement.ranks.first().cloned().unwrap_or(RankPlace { rank: 0, local_rank: 0 });
    let mut all = rank_environment(job, placement, &place, 0, "", is_set);
    all.extend(env.clone());
    all.into_iter().filter(|(name, _)| shapes(name)).collect()
}
