//! The process that a node runs in, as the node's own thread sees it.
//!
//! A JVM stops the threads that call it for as long as a full collection takes, Python those that want its lock. So the
//! thread that called [`crate::run_node`] only asks and answers that process, and the node has a thread of its own.
//!
//! - NODE-30 (nobody-waits): the node's thread waits for no call into the process. That the process wants the end
//!   comes as a message, and what the node tells is taken later.
//! - NODE-31 (in-order): the process is told everything in order, and all of it before `run_node` returns.

use std::os::fd::OwnedFd;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use phalanx_types::{Error, Result};

use crate::metric::MetricChange;
use crate::node::callbacks::NodeCallbacks;

/// How often a blocking call looks whether its caller wants to end it.
pub(crate) const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

/// The process, for the node's thread.
pub(crate) struct Process {
    observed: Sender<Vec<MetricChange>>,
    interruptions: Receiver<String>,
    executor_log: Option<OwnedFd>,
}

impl Process {
    /// Why the process wants the node to end; it says so once.
    pub(crate) fn interruptions(&self) -> &Receiver<String> {
        &self.interruptions
    }

    /// The log of its own that the platform collects, if there is one and ranks' output belongs there.
    pub(crate) fn take_executor_log(&mut self) -> Option<OwnedFd> {
        self.executor_log.take()
    }

    /// Tells how metrics changed.
    pub(crate) fn observed(&self, changes: Vec<MetricChange>) {
        // The process serves for as long as the node's thread runs.
        let _ = self.observed.send(changes);
    }
}

/// Runs `node` in a thread of its own, and serves it here by `callbacks` until it has ended. It may write to
/// `executor_log`.
///
/// # Errors
/// What `node` returns; [`ErrorKind::Io`] if the system gives no thread.
pub(crate) fn beside<T: Send>(
    callbacks: &mut dyn NodeCallbacks,
    executor_log: Option<OwnedFd>,
    node: impl FnOnce(&mut Process) -> Result<T> + Send,
) -> Result<T> {
    let (observed, changes) = crossbeam_channel::unbounded();
    // One that stays, and that of a panic.
    let (interrupt, interruptions) = crossbeam_channel::bounded(2);
    let mut process = Process { observed, interruptions, executor_log };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("phalanx-node".into())
            .spawn_scoped(scope, move || node(&mut process))
            .map_err(|e| Error::io("start the node's thread", &e))?;
        let _alarm = Alarm(&interrupt);
        serve(callbacks, &changes, &interrupt);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Ends the node if the code of its process panics: the node's thread is waited for.
struct Alarm<'a>(&'a Sender<String>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.0.try_send("the code of its process failed".into());
        }
    }
}

fn serve(
    callbacks: &mut dyn NodeCallbacks,
    changes: &Receiver<Vec<MetricChange>>,
    interrupt: &Sender<String>,
) {
    let mut is_interrupted = false;
    loop {
        if let Some(reason) = callbacks.interrupted().filter(|_| !is_interrupted) {
            is_interrupted = true;
            let _ = interrupt.try_send(reason);
        }
        match changes.recv_timeout(INTERRUPT_EVERY) {
            Ok(changes) => callbacks.observed(&changes),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
