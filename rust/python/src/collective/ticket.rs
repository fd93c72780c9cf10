//! A collective that was left to the group's thread, and what happens when it is done.
//!
//! - TIC-1: what the call needs is kept until it is done, even if nobody keeps the ticket.
//! - TIC-2: each callback runs once, with the interpreter lock, never on the thread that runs collectives: it may
//!   start others and wait for them.
//! - TIC-3: who waits on the main thread can be interrupted by a signal, such as that of Ctrl-C; the call goes on.

use std::cell::Cell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};
use pyo3::prelude::*;

use crate::errors::{checked, detached};

/// How often a thread that waits looks whether Python has a signal to handle.
pub(crate) const BETWEEN_SIGNALS: Duration = Duration::from_millis(100);

thread_local! {
    /// Whether this is a thread that runs callbacks.
    static RUNS_CALLBACKS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub(crate) struct Progress {
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

impl Progress {
    pub(crate) fn keeping(kept: Py<PyAny>) -> Progress {
        Progress { state: Mutex::new(State { kept: Some(kept), ..State::default() }), done: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end, without the interpreter lock.
    pub(crate) fn end(&self, result: Result<Option<usize>>, callbacks: &Callbacks) {
        let mut state = self.state();
        state.result = Some(result);
        let left = std::mem::take(&mut state.callbacks);
        // Python objects are dropped where the lock is held: by the thread for callbacks, or here, later.
        let kept = state.kept.take();
        drop(state);
        self.done.notify_all();
        callbacks.run(left, kept);
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
pub(crate) struct Ticket {
    pub(crate) progress: Arc<Progress>,
    pub(crate) callbacks: Arc<Callbacks>,
}

#[pymethods]
impl Ticket {
    pub(crate) fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let deadline = timeout.map_or(Deadline::never(), |seconds| {
            Deadline::after(Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
        });
        loop {
            let left = deadline.left().unwrap_or(BETWEEN_SIGNALS).min(BETWEEN_SIGNALS);
            match detached(py, || Ok(self.progress.by(Deadline::after(left))))? {
                Some(result) => return checked(py, result.map(drop)),
                None if deadline.passed() => {
                    let text = "the collective isn't done yet: wait timed out";
                    return checked(py, Err(Error::new(ErrorKind::Timeout, text)));
                }
                None => py.check_signals()?, // TIC-3
            }
        }
    }

    fn is_done(&self) -> bool {
        self.progress.state().result.is_some()
    }

    fn failed(&self) -> bool {
        self.progress.state().result.as_ref().is_some_and(Result::is_err)
    }

    fn source(&self) -> Option<usize> {
        self.progress.state().result.as_ref()?.as_ref().ok().copied().flatten()
    }

    fn on_done(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<()> {
        if RUNS_CALLBACKS.get() {
            // The thread that would run it is this one, and may be about to wait for it (TIC-2).
            py.detach(|| self.progress.by(Deadline::never()));
        } else {
            let mut state = self.progress.state();
            if state.result.is_none() {
                state.callbacks.push(callback);
                return detached(py, || self.callbacks.get_ready());
            }
        }
        callback.call0(py).map(drop)
    }
}

type Ended = (Vec<Py<PyAny>>, Option<Py<PyAny>>);

/// The thread of a group that runs callbacks; it starts with the first.
#[derive(Default)]
pub(crate) struct Callbacks(Mutex<Option<Sender<Ended>>>);

impl Callbacks {
    fn sender(&self) -> MutexGuard<'_, Option<Sender<Ended>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get_ready(&self) -> Result<()> {
        let mut sender = self.sender();
        if sender.is_some() {
            return Ok(());
        }
        let (send, receive) = channel::<Ended>();
        let run = move || {
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
        *sender = Some(send);
        Ok(())
    }

    fn run(&self, callbacks: Vec<Py<PyAny>>, kept: Option<Py<PyAny>>) {
        if let Some(sender) = &*self.sender() {
            // It fails only when the interpreter is about to end.
            let _ = sender.send((callbacks, kept));
        }
    }
}
