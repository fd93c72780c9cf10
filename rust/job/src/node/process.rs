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

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use phalanx_types::{Error, ErrorKind, Result};

use crate::metric::MetricChange;
use crate::node::callbacks::NodeCallbacks;
use crate::node::control::INTERRUPT_EVERY;

/// What the node's thread has for its process.
enum Ask {
    /// Exchange a text with all tasks, and answer here.
    Gather(String, Sender<Result<Vec<String>>>),
    Observed(Vec<MetricChange>),
}

type Interruption = Arc<Mutex<Option<String>>>;

/// The process, for the node's thread.
pub(crate) struct Process {
    asks: Sender<Ask>,
    interruption: Interruption,
    /// Where the outcome of the newest exchange comes.
    gathering: Option<Receiver<Result<Vec<String>>>>,
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

    /// Begins to exchange a text with all tasks. One that was begun before is ended first, by the process.
    pub(crate) fn gather(&mut self, text: String) {
        let (answer, answered) = crossbeam_channel::bounded(1);
        // The process serves for as long as the node's thread runs.
        let _ = self.asks.send(Ask::Gather(text, answer));
        self.gathering = Some(answered);
    }

    /// Whether an exchange has begun of which this node has yet to hear.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering.is_some()
    }

    /// What the tasks exchanged, in partition order, once it is there; once.
    pub(crate) fn gathered(&mut self) -> Option<Result<Vec<String>>> {
        let all = self.gathering.as_ref()?.try_recv().ok()?;
        self.gathering = None;
        Some(all)
    }

    /// Tells how metrics changed.
    pub(crate) fn observed(&self, changes: Vec<MetricChange>) {
        let _ = self.asks.send(Ask::Observed(changes));
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
    let (asks, inbox) = crossbeam_channel::unbounded();
    let interruption = Interruption::default();
    let mut process =
        Process { asks, interruption: Arc::clone(&interruption), gathering: None, executor_log };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("phalanx-node".into())
            .spawn_scoped(scope, move || node(&mut process))
            .map_err(|e| Error::io("start the node's thread", &e))?;
        let _alarm = Alarm(&interruption);
        serve(callbacks, &inbox, &interruption);
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

fn serve(callbacks: &mut dyn NodeCallbacks, asks: &Receiver<Ask>, interruption: &Interruption) {
    loop {
        if let Some(reason) = callbacks.interrupted() {
            interrupt(interruption, reason);
        }
        match asks.recv_timeout(INTERRUPT_EVERY) {
            Ok(Ask::Gather(text, answer)) => {
                // A node that is over doesn't wait for it any more.
                let _ = answer.send(callbacks.all_gather(&text));
            }
            Ok(Ask::Observed(changes)) => callbacks.observed(&changes),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The error of an exchange whose texts are none.
pub(crate) fn not_exchanged(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Protocol, format!("what the tasks exchanged through Spark: {why}"))
}
