//! A collective that was left to the group's thread, as c10d's `Work`, and what happens when it is done.
//!
//! - BINDING-10 (kept-alive): what the call needs is kept until it is done, even if nobody keeps the work.
//! - BINDING-11 (callbacks-once): each callback runs once, with the interpreter lock, and never on the thread that runs
//!   collectives. So it may start others and wait for them.
//! - BINDING-12 (wait-interruptible): a wait on the main thread can be interrupted by a signal, such as that of Ctrl-C,
//!   within [`BETWEEN_SIGNALS`]. The call goes on.
//! - BINDING-13 (lock-order): no thread that holds a lock of this module takes or gives up the interpreter lock. Others
//!   take these locks while they hold the interpreter's.
//! - BINDING-14 (callbacks-over): who leaves a group waits for its callbacks, for [`CALLBACKS_END_WITHIN`] at the most.
//!   One that came back to an interpreter that has ended would end the process (SIGABRT).

use std::cell::Cell;
use std::convert::Infallible;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::errors::group::{checked, detached};

/// How often a thread that waits looks whether Python has a signal to handle.
pub(crate) const BETWEEN_SIGNALS: Duration = Duration::from_millis(100);

/// How long callbacks may still run when their group is left.
const CALLBACKS_END_WITHIN: Duration = Duration::from_secs(5);

thread_local! {
    /// Whether this is a thread that runs callbacks.
    static RUNS_CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub(crate) struct Completion {
    state: Mutex<State>,
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// Of a message, who sent it.
    result: Option<Result<Option<usize>>>,
    callbacks: Vec<Py<PyAny>>,
    kept: Option<Py<PyAny>>,
}

impl Completion {
    pub(crate) fn keeping(kept: Py<PyAny>) -> Completion {
        Completion { state: Mutex::new(State { kept: Some(kept), ..State::default() }), done: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end, without the interpreter lock.
    pub(crate) fn end(&self, result: Result<Option<usize>>, callbacks: &CallbackThread) {
        let mut state = self.state();
        state.result = Some(result);
        let left = std::mem::take(&mut state.callbacks);
        // Python objects are dropped where the lock is held: by the thread for callbacks, or here, later.
        let kept = state.kept.take();
        // Before anybody can see the end: who does may leave the group, and then no callback is taken any more.
        callbacks.run(left, kept);
        drop(state);
        self.done.notify_all();
    }

    /// The result, if it is there by then.
    fn by(&self, deadline: Deadline) -> Option<Result<Option<usize>>> {
        let mut state = self.state();
        while state.result.is_none() {
            let left = deadline.left().unwrap_or(Duration::from_secs(3600));
            if left.is_zero() {
                return None;
            }
            state = self.done.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.result.clone()
    }
}

#[pyclass(module = "phalanx._native", frozen)]
pub(crate) struct Work {
    pub(crate) completion: Arc<Completion>,
    pub(crate) callbacks: Arc<CallbackThread>,
}

#[pymethods]
impl Work {
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = timeout.map_or(Deadline::never(), |seconds| {
            Deadline::after(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
        });
        loop {
            let left = deadline.left().unwrap_or(BETWEEN_SIGNALS).min(BETWEEN_SIGNALS);
            match detached(py, || Ok(self.completion.by(Deadline::after(left))))? {
                Some(result) => return checked(py, result.map(drop)),
                None if deadline.passed() => {
                    let text = "the collective isn't done yet: wait timed out";
                    return checked(py, Err(Error::new(ErrorKind::Timeout, text)));
                }
                None => py.check_signals()?, // BINDING-12
            }
        }
    }

    fn is_done(&self) -> bool {
        self.completion.state().result.is_some()
    }

    fn failed(&self) -> bool {
        self.completion.state().result.as_ref().is_some_and(Result::is_err)
    }

    fn source(&self) -> Option<usize> {
        self.completion.state().result.as_ref()?.as_ref().ok().copied().flatten()
    }

    fn on_done(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        if RUNS_CALLBACKS.get() {
            // The thread that would run it is this one, and may be about to wait for it (BINDING-11).
            py.detach(|| self.completion.by(Deadline::never()));
        } else if !self.is_done() {
            // Before the callback is left there, since the end may come at once; and before the lock (BINDING-13).
            detached(py, || self.callbacks.get_ready())?;
            let mut state = self.completion.state();
            if state.result.is_none() {
                state.callbacks.push(callback);
                return Ok(());
            }
        }
        callback.call0(py).map(drop)
    }
}

type Ended = (Vec<Py<PyAny>>, Option<Py<PyAny>>);

/// The thread of a group that runs callbacks; it starts with the first, and [`CallbackThread::end`] ends it.
#[derive(Default)]
pub(crate) struct CallbackThread(Mutex<Option<Running>>);

struct Running {
    sender: Sender<Ended>,
    /// Closed when the thread is over.
    over: Receiver<Infallible>,
}

impl CallbackThread {
    fn running(&self) -> MutexGuard<'_, Option<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get_ready(&self) -> Result<()> {
        let mut running = self.running();
        if running.is_some() {
            return Ok(());
        }
        let ((sender, receive), (goes_on, over)) = (channel::<Ended>(), channel());
        let run = move || {
            let _goes_on = goes_on;
            RUNS_CALLBACKS.set(true);
            for ended in receive {
                // None when the interpreter is about to end.
                let attached = Python::try_attach(|py| {
                    let (callbacks, kept) = ended;
                    for callback in callbacks {
                        if let Err(problem) = callback.call0(py) {
                            problem.write_unraisable(py, Some(callback.bind(py)));
                        }
                    }
                    drop(kept);
                });
                if attached.is_none() {
                    return;
                }
            }
        };
        std::thread::Builder::new()
            .name("phalanx-callbacks".into())
            .spawn(run)
            .map_err(|error| Error::io("start a thread", &error))?;
        *running = Some(Running { sender, over });
        Ok(())
    }

    fn run(&self, callbacks: Vec<Py<PyAny>>, kept: Option<Py<PyAny>>) {
        if let Some(running) = &*self.running() {
            // It fails only when the interpreter is about to end.
            let _ = running.sender.send((callbacks, kept));
        }
    }

    /// Ends the thread, once it has run the callbacks of all that is done; whether it is over. A later callback starts
    /// another thread. To be called without the interpreter lock.
    pub(crate) fn end(&self) -> bool {
        let Some(Running { sender, over }) = self.running().take() else { return true };
        drop(sender);
        // A callback that leaves its group doesn't wait for itself.
        RUNS_CALLBACKS.get() || over.recv_timeout(CALLBACKS_END_WITHIN) != Err(RecvTimeoutError::Timeout)
    }
}
