//! A node's end of one job: it joins, starts its ranks through the guard, watches them, reports, and ends them.
//!
//! - NODE-1 (nothing-left): when [`run_node`] returns, however it does, no process of its ranks is left (as far as the
//!   guard can end them), no thread, no socket, and only the log files on disk.
//! - NODE-2 (failure-first): a failure of a rank is reported to the hub before anything is waited for.
//! - NODE-3 (driver-lost): a node that loses its driver ends its ranks.
//! - NODE-5 (attempts-apart): attempts share nothing but the logs: each has a guard, a store and folders of its own.
//! - NODE-6 (busy-process): if the process that the node runs in does nothing for a while (a collection of the JVM,
//!   Python's lock), the node goes on: it reports to the hub, and obeys its orders.
//! - NODE-7 (let-in): a node whose connections the store refuses says so before it starts a rank, which would wait in
//!   vain.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use phalanx_io::raise_descriptor_limit;
use phalanx_rendezvous::store::StoreClient;
use phalanx_types::{Deadline, Error, ErrorKind, ExecutorLog, NodeSpec, Result};

use crate::node::attempt::{Attempt, Kept};
use crate::node::blocks::NodeBlocks;
use crate::node::callbacks::NodeCallbacks;
use crate::node::disk::{Worked, beside};
use crate::node::files::NodeFiles;
use crate::node::finish::AfterAttempt;
use crate::node::join::{Joined, Joining, join};
use crate::node::launch::Prepared;
use crate::node::log_directory;
use crate::node::metrics::Metrics;
use crate::node::options::{Here, Options, Payload};
use crate::node::process::{Process, beside as beside_process};
use crate::node::store::NodeStore;
use crate::node::warm::guard_for;

/// How long the store, whose node may begin later than this one, may take to say whether it takes this node's
/// connections.
const STORE_PATIENCE: Duration = Duration::from_secs(1);

/// Runs the node of one partition until its ranks have ended; they execute `payload`.
///
/// The hub has everything then. That a rank failed is no error of the node.
///
/// # Errors
/// If the node could not do its part; its ranks, if any ran, are ended.
pub fn run_node(
    spec: &NodeSpec,
    payload: Payload<'_>,
    here: &Here,
    callbacks: &mut dyn NodeCallbacks,
) -> Result<()> {
    // Before anything that inherits it, a warm pool for one.
    raise_descriptor_limit();
    let options = Options::of(spec, payload, here)?;
    let executor_log = match spec.job.logs.executor {
        ExecutorLog::Off => None,
        ExecutorLog::Errors | ExecutorLog::All => callbacks.executor_log(),
    };
    let mut kept = None;
    let outcome =
        beside_process(callbacks, executor_log, |process| run_attempts(&options, &mut kept, process));
    if let Some(kept) = &kept {
        log_directory::keep(&spec.job.logs.directory, &spec.job.id, kept.logs_and_dumps(), callbacks);
    }
    outcome
}

/// One attempt after the other, until the hub wants no more.
fn run_attempts(options: &Options<'_>, kept: &mut Option<Kept>, process: &mut Process) -> Result<()> {
    let (spec, here) = (options.spec, options.here);
    let mut metrics = Metrics::new();
    let mut attempt = spec.attempt;
    loop {
        match run_attempt(options, attempt, kept, &mut metrics, process)? {
            AfterAttempt::Over => return Ok(()),
            AfterAttempt::Again { attempt: next, reason } => {
                let (job, partition) = (&spec.job.id, here.partition);
                log::info!("job {job}: partition {partition} starts its ranks again: {reason}");
                for log in kept.iter().flat_map(|kept| kept.logs.values()) {
                    log.resume(&format!("restart {next}: {reason}"));
                }
                attempt = next;
            }
        }
    }
}

/// From joining to the hub's word on what follows.
fn run_attempt(
    options: &Options<'_>,
    number: u32,
    kept: &mut Option<Kept>,
    metrics: &mut Metrics,
    process: &mut Process,
) -> Result<AfterAttempt> {
    let began = Instant::now();
    let joined = match join(options, number, process)? {
        Joining::Placed(joined) => joined,
        Joining::Over => return Ok(AfterAttempt::Over),
        Joining::Again(attempt) => return Ok(AfterAttempt::Again { attempt, reason: String::new() }),
    };
    let Joined { placement, store, line } = *joined;
    metrics.joined(began);
    let own_address =
        store.listener.local_addr().map_err(|e| line.fails(Error::io("read this node's address", &e)))?;
    // The store listens before any rank starts, else the first connects in vain and backs off.
    let store = NodeStore::open(options, &placement, store).map_err(|e| line.fails(e))?;
    let executor_log = if kept.is_none() { process.take_executor_log() } else { None };
    let patience = Some(options.spec.job.policy.join_timeout);
    let made = beside(&line, process, patience, |_| {
        let kept = match kept.take() {
            Some(before) => kept.insert(before),
            None => {
                let (here, spec) = (options.here, options.spec);
                let files = NodeFiles::make(&here.work_dir, &spec.job.id, here.partition, spec.attempt)?;
                kept.insert(Kept { files, logs: BTreeMap::new(), executor_log })
            }
        };
        let blocks = NodeBlocks::open(options, &placement, own_address.ip(), store.address())?;
        let access = blocks.as_ref().map(|blocks| &blocks.access);
        let prepared = Prepared::make(options, kept, &placement, access)?;
        Ok((kept, prepared, blocks))
    });
    let (kept, prepared, blocks) = match made? {
        Worked::Done(made) => made,
        Worked::Ended(after) => return Ok(after),
    };
    let guarded = beside(&line, process, None, |is_ending| {
        let guard = guard_for(options, &placement, is_ending)?;
        check_store(options, store.address())?;
        Ok(guard)
    });
    let guard = match guarded? {
        Worked::Done(guard) => guard,
        Worked::Ended(after) => return Ok(after),
    };
    let at = store.address();
    let mut attempt =
        Attempt::launch(options, number, kept, prepared, metrics, guard, &placement, at, line, blocks)?;
    attempt.watch(process);
    attempt.finish(process)
}

/// NODE-7
fn check_store(options: &Options<'_>, store: SocketAddr) -> Result<()> {
    match StoreClient::connect(store, Deadline::after(STORE_PATIENCE)) {
        Err(e) if e.kind() == ErrorKind::Refused => {
            let Here { partition, host, .. } = options.here;
            Err(e.context(format_args!("partition {partition} on {host}")))
        }
        // Whether the ranks need it at all is theirs to know.
        Err(e) => {
            log::info!("job {}: {e}", options.spec.job.id);
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
