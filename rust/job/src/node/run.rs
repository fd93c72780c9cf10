//! A node's end of one job: it joins, starts its ranks through the guard, watches them, reports, and ends them.
//!
//! The only place of a node that takes what happens. The machine decides what to do about it, and `effects` does it.
//!
//! - NODE-39 (nothing-left): when [`run_node`] returns, however it does, no process of its ranks is left (as far as the
//!   guard can end them), no thread that a disk doesn't hold, no socket, and only the log files on disk.
//! - NODE-40 (failure-first): a failure of a rank is reported to the hub before anything is waited for.
//! - NODE-41 (driver-lost): a node that loses its driver ends its ranks.
//! - NODE-42 (held-for-next): a node that is done stays for another attempt until the hub lets it go, as long as the
//!   hub answers and the process that the node runs in doesn't want it to end.
//! - NODE-43 (attempts-apart): attempts share nothing but the logs: each has a guard, a store and folders of its own.
//! - NODE-44 (busy-process): if the process that the node runs in does nothing for a while (a collection of the JVM,
//!   Python's lock), the node goes on: it reports to the hub, and obeys its orders.
//! - NODE-45 (let-in): a node whose connections the store refuses says so before it starts a rank, which would wait in
//!   vain.

use std::time::Instant;

use crossbeam_channel::select;
use phalanx_io::raise_descriptor_limit;
use phalanx_types::{Attempt, Error, ErrorKind, ExecutorLog, Gang, NodeSpec, Result};

use crate::node::callbacks::NodeCallbacks;
use crate::node::effects::Effects;
use crate::node::kept::Kept;
use crate::node::machine::{AfterAttempt, Event, Machine, Rules};
use crate::node::metrics::Metrics;
use crate::node::options::{Here, Options, Payload};
use crate::node::output::log_directory;
use crate::node::process::{INTERRUPT_EVERY, Process, beside};

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
    let mut node = Node { options: &options, kept: None, metrics: Metrics::new(), interrupted: None };
    let outcome = beside(callbacks, executor_log, |process| node.run(process));
    if let Some(kept) = &node.kept {
        log_directory::keep(&spec.job.logs.directory, &spec.job.id, kept.logs_and_dumps(), callbacks);
    }
    outcome
}

/// What a node has over all its attempts.
struct Node<'a> {
    options: &'a Options<'a>,
    kept: Option<Kept>,
    metrics: Metrics,
    /// Why its process wants it to end.
    interrupted: Option<String>,
}

impl Node<'_> {
    /// One attempt after the other, until the hub wants no more.
    fn run(&mut self, process: &mut Process) -> Result<()> {
        let (mut attempt, mut why) = (self.options.spec.attempt, None);
        while let AfterAttempt::Again { attempt: next, reason } = self.run_attempt(attempt, why, process)? {
            let (job, partition) = (&self.options.spec.job.id, self.options.here.partition);
            log::info!("job {job}: partition {partition} starts its ranks again: {reason}");
            (attempt, why) = (next, Some(reason));
        }
        match self.interrupted.take() {
            // Spark starts a seat's task again only where it failed.
            Some(reason) if self.options.spec.job.policy.gang == Gang::Tasks => {
                Err(Error::new(ErrorKind::Cancelled, reason))
            }
            _ => Ok(()),
        }
    }

    /// From the first connection to the hub's word on what follows. `why` there is another attempt than the first.
    fn run_attempt(
        &mut self,
        attempt: Attempt,
        why: Option<String>,
        process: &mut Process,
    ) -> Result<AfterAttempt> {
        let mut machine = Machine::new(Rules::of(self.options.spec), self.interrupted.take());
        let (options, kept, metrics, decides) =
            (self.options, &mut self.kept, &mut self.metrics, &mut machine);
        // What helpers borrow is there until they end: the last wait for them is that of the scope.
        let outcome = std::thread::scope(move |scope| {
            let mut effects = Effects::new(options, attempt, why, scope, kept, metrics, process)?;
            let mut actions = Vec::new();
            loop {
                let (guard, news) = (effects.guard_events(), effects.news());
                let event = select! {
                    recv(news) -> news => news.ok().and_then(|news| effects.take(news)),
                    recv(guard) -> event => effects.guard_said(event.ok()),
                    recv(effects.interruptions()) -> reason => reason.ok().map(Event::Interrupted),
                    default(INTERRUPT_EVERY) => None,
                };
                decides.on(Instant::now(), event.unwrap_or(Event::Tick), &mut actions);
                actions.drain(..).for_each(|action| effects.act(action));
                effects.observe();
                if let Some(outcome) = decides.outcome() {
                    effects.observe_all();
                    return outcome;
                }
            }
        });
        self.interrupted = machine.interrupted().map(String::from);
        outcome
    }
}
