//! The process that a node runs in, as the node's own thread sees it.
//!
//! A JVM stops the threads that call it for as long as a full collection takes, Python those that want its lock. So the
//! thread that called [`crate::run_node`] only asks and answers that process, and the node has a thread of its own.
//!
//! - PROCESS-1 (nobody-waits): the node's thread waits for no call into the process. What it asks for comes later, and
//!   what it tells is taken later.
//! - PROCESS-2 (in-order): the process is told everything in order, and all of it before `run_node` returns.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use phalanx_types::{Error, Result};

use crate::metric::MetricChange;
use crate::node::callbacks::NodeCallbacks;

/// How often a blocking call looks whether its caller wants to end it.
pub(crate) const INTERRUPT_EVERY: Duration = Duration::from_millis(50);

type Interruption = Arc<Mutex<Option<String>>>;

/// The process, for the node's thread.
pub(crate) struct Process {
    observed: Sender<Vec<MetricChange>>,
    interruption: Interruption,
    executor_log: Option<OwnedFd>,
}

impl Process {
    /// Why the process wants the node to end.
    pub(crate) fn interrupted(&self) -> Option<String> {
        self.interruption.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
    let interruption = Interruption::default();
    let mut process = Process { observed, interruption: Arc::clone(&interruption), executor_log };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("phalanx-node".into())
            .spawn_scoped(scope, move || node(&mut process))
            .map_err(|e| Error::io("start the node's thread", &e))?;
        let _alarm = Alarm(&interruption);
        serve(callbacks, &changes, &interruption);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Ends the node if the code of its process panics: the node's thread is waited for.
struct Alarm<'a>(&'a Interruption);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            interrupt(self.0, "the code of its process failed".into());
        }
    }
}

fn interrupt(interruption: &Interruption, reason: String) {
    interruption.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
}

fn serve(
    callbacks: &mut dyn NodeCallbacks,
    changes: &Receiver<Vec<MetricChange>>,
    interruption: &Interruption,
) {
    loop {
        if let Some(reason) = callbacks.interrupted() {
            interrupt(interruption, reason);
        }
        match changes.recv_timeout(INTERRUPT_EVERY) {
            Ok(changes) => callbacks.observed(&changes),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
