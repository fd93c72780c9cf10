//! Which guard a node's ranks get: one that was forked from a warm pool, or a cold one.
//!
//! - NODE-50 (says-why-cold): if anything keeps ranks from being warm, they start cold, and one line says why.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use phalanx_io::raise_descriptor_limit;
use phalanx_supervisor::warm_pool::{IMPORTS, LATER_IMPORTS, PoolOptions, prestart, shapes, warm_guard};
use phalanx_supervisor::{Guard, GuardOptions};
use phalanx_types::contract::ENV_OMP_THREADS;
use phalanx_types::{
    Attempt, CpuPolicy, Deadline, Error, ErrorKind, NodePlacement, RankPlace, RankProgram, Result, WarmPolicy,
};

use crate::node::home::Home;
use crate::node::options::{Options, own_variable};
use crate::node::rank::environment::rank_environment;
use crate::node::rank::program;
use crate::node::rank::threads::threads_ahead;

/// How long a run waits for a pool that is being started. Ranks that start cold import the same, each for itself.
const POOL_TIMEOUT: Duration = Duration::from_secs(60);

/// Variables of a run's own that libraries read when they are imported (Lightning: its logger for MLflow). Where a pool
/// imports libraries, it is one for these values.
const READ_BY_LIBRARIES: [&str; 2] = ["MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"];

/// The guard of this node's ranks. May wait for a pool, until the node `is_ending`.
///
/// # Errors
/// [`ErrorKind::Cancelled`] then; else if there is none to be had.
pub(crate) fn guard_for(
    options: &Options<'_>,
    placement: &NodePlacement,
    is_ending: &AtomicBool,
) -> Result<Guard> {
    let (job, home) = (&options.spec.job, &options.here.home);
    let grace = job.policy.grace;
    if job.warm.enabled && !options.pool.is_empty() {
        let pool = PoolOptions {
            guard: home.guard.clone(),
            program: options.pool.clone(),
            env: in_common(options, placement),
            shared: home.shares_pool(),
            ..what_pool(&job.warm)
        };
        let mut go_on = || !is_ending.load(Ordering::Acquire);
        match warm_guard(&pool, grace, Deadline::after(POOL_TIMEOUT), &mut go_on) {
            Ok(guard) => return Ok(guard),
            Err(why) if is_ending.load(Ordering::Acquire) => {
                return Err(Error::new(ErrorKind::Cancelled, why)); // NODE-18
            }
            Err(why) => {
                let partition = options.here.partition;
                log::warn!(
                    "job {}: the ranks of partition {partition} start without the warm pool: {why}",
                    job.id
                );
            }
        }
    }
    Guard::spawn(&GuardOptions { binary: home.guard.clone(), grace })
}

/// Starts the pool of a run of `program` in the background: of a rank that has a task to itself. `env` is the
/// application's.
pub fn prestart_pool(
    warm: &WarmPolicy,
    cpus: &CpuPolicy,
    program: &RankProgram,
    env: &BTreeMap<String, String>,
    home: &Home,
) {
    let program = program::of_pool(program, home);
    if warm.enabled && !program.is_empty() {
        // As a node does: a pool of other limits is another pool.
        raise_descriptor_limit();
        let threads = threads_ahead(cpus, std::env::var(ENV_OMP_THREADS).ok().as_deref());
        let of_a_rank = threads.map(|threads| (ENV_OMP_THREADS.to_string(), threads.to_string()));
        let env: BTreeMap<String, String> = of_a_rank
            .into_iter()
            .chain(home.environment(env, own_variable))
            .filter(|(name, _)| shapes(name))
            .collect();
        let guard = home.guard.clone();
        prestart(&PoolOptions { guard, program, env: env.into_iter().collect(), ..what_pool(warm) });
    }
}

fn what_pool(warm: &WarmPolicy) -> PoolOptions {
    let imports = IMPORTS.into_iter().map(String::from).chain(warm.imports.iter().cloned()).collect();
    let later = LATER_IMPORTS.map(String::from).into();
    PoolOptions { imports, later, idle_timeout: warm.idle_timeout, ..PoolOptions::default() }
}

/// What all ranks of a node have, as far as imports depend on it.
fn in_common(options: &Options<'_>, placement: &NodePlacement) -> Vec<(String, String)> {
    let place = placement.ranks.first().cloned().unwrap_or(RankPlace { rank: 0, local_rank: 0 });
    let has = |name: &str| options.has_variable(name);
    let mut all =
        rank_environment(&options.spec.job, placement, &place, placement.store, Attempt::first(), "", has);
    all.extend(options.env.clone());
    let has_libraries = !options.spec.job.warm.imports.is_empty();
    let counts = |name: &str| shapes(name) || has_libraries && READ_BY_LIBRARIES.contains(&name);
    all.into_iter().filter(|(name, _)| counts(name)).collect()
}
