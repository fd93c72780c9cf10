//! A group's messages: what is sent, and what is waited for. They go beside the collectives: none waits for the other.
//!
//! - BINDING-6 (thread-on-demand): there is a thread only once a message is waited for, or can't be handed over at
//!   once. It ends when the group is closed.
//! - BINDING-7 (asleep): it sleeps until a message moves, a rank is gone, the group fails, or a deadline passes.
//! - BINDING-8 (told): each message that is waited for ends: with the message, or with why it doesn't come.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_collective::Messenger;
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use super::engine::closed;
use super::job_ranks::JobRanks;
use super::work::{CallbackThread, Completion};
use crate::memory::Memory;

/// A message that is waited for.
pub(crate) struct Receive {
    pub(crate) memory: Memory,
    pub(crate) from: Option<usize>,
    pub(crate) tag: u64,
    pub(crate) deadline: Deadline,
    pub(crate) timeout: Duration,
    pub(crate) completion: Arc<Completion>,
    pub(crate) callbacks: Arc<CallbackThread>,
}

impl Receive {
    fn end(&self, result: Result<Option<usize>>) {
        self.completion.end(result, &self.callbacks);
    }

    fn is_late(&self, rank: usize) -> Error {
        let from = self.from.map_or("any rank".into(), |from| format!("rank {from}"));
        let text = format!(
            "rank {rank}: recv timed out: no message with tag {} from {from} after {:.1} s",
            self.tag,
            self.timeout.as_secs_f64()
        );
        Error::new(ErrorKind::Timeout, text)
    }
}

/// A rank's messages until its group is closed; dropping it closes them.
pub(crate) struct Postbox(Arc<Shared>);

struct Shared {
    rank: usize,
    messenger: Messenger,
    names: JobRanks,
    state: Mutex<State>,
    /// That something is pending, or that it is closed.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The oldest first.
    receives: Vec<Receive>,
    has_thread: bool,
    is_closed: bool,
}

impl Postbox {
    pub(crate) fn new(rank: usize, messenger: Messenger, names: JobRanks) -> Postbox {
        let (state, changed) = Default::default();
        Postbox(Arc::new(Shared { rank, messenger, names, state, changed }))
    }

    /// Sends a message; the memory is read before it returns.
    ///
    /// # Safety
    /// Until it returns, the memory exists and is written by nobody.
    pub(crate) unsafe fn send(&self, memory: Memory, to: usize, tag: u64) -> Result<()> {
        let shared = &self.0;
        if shared.state().is_closed {
            return Err(closed());
        }
        // SAFETY: passed on to the caller.
        let bytes = unsafe { memory.read() };
        shared.messenger.send(bytes, to, tag).map_err(|error| shared.names.with_job_ranks(error))?;
        shared.go_on(&mut shared.state())
    }

    /// Takes a message when it comes; at once if it is there.
    pub(crate) fn receive(&self, receive: Receive) -> Result<()> {
        let mut state = self.0.state();
        if state.is_closed {
            return Err(closed());
        }
        state.receives.push(receive);
        self.0.serve(&mut state);
        self.0.go_on(&mut state)
    }

    /// What is waited for doesn't come any more; what was sent is left to the group, which hands it over as it leaves.
    pub(crate) fn close(&self) {
        let mut state = self.0.state();
        state.is_closed = true;
        for receive in state.receives.drain(..) {
            receive.end(Err(closed()));
        }
        self.0.changed.notify_all();
        self.0.messenger.ring();
    }
}

impl Drop for Postbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends those of the messages that have come, or won't (BINDING-8).
    fn serve(&self, state: &mut State) {
        if state.receives.is_empty() {
            return;
        }
        // What is wrong with the group is said to each that waits.
        let _ = self.messenger.progress(Duration::ZERO);
        state.receives.retain(|receive| {
            // SAFETY: the work's completion keeps the tensor until its end, which is below; torch forbids to touch it.
            let buffer = unsafe { receive.memory.write() };
            let result = match self.messenger.take(buffer, receive.from, receive.tag) {
                Ok(None) if receive.deadline.passed() => Err(receive.is_late(self.rank)),
                Ok(None) => return true,
                other => other,
            };
            receive.end(result.map_err(|error| self.names.with_job_ranks(error)));
            false
        });
    }

    /// Whether something goes on by itself.
    fn is_pending(&self, state: &State) -> bool {
        !state.receives.is_empty() || self.messenger.has_unsent()
    }

    /// Has the thread see to what is pending.
    fn go_on(self: &Arc<Self>, state: &mut State) -> Result<()> {
        if !self.is_pending(state) || state.is_closed {
            return Ok(());
        }
        if !state.has_thread {
            let shared = Arc::clone(self);
            std::thread::Builder::new()
                .name("phalanx-messages".into())
                .spawn(move || shared.see_to_it())
                .map_err(|error| Error::io("start a thread", &error))?;
            state.has_thread = true;
        }
        self.changed.notify_all();
        // One that sleeps doesn't know of a deadline that is sooner than those before.
        self.messenger.ring();
        Ok(())
    }

    fn see_to_it(&self) {
        let mut state = self.state();
        while !state.is_closed {
            let rings = self.messenger.rings();
            self.serve(&mut state);
            if !self.is_pending(&state) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let left = state.receives.iter().filter_map(|receive| receive.deadline.left()).min();
            drop(state);
            // BINDING-7. A failure is found again, and said, by who looks for messages.
            let _ = self.messenger.wait(rings, left.unwrap_or(Duration::MAX));
            if self.messenger.has_unsent() {
                let _ = self.messenger.progress(Duration::ZERO);
            }
            state = self.state();
        }
    }
}
