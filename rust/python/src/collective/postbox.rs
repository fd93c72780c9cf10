//! A group's messages: what is sent, and what is waited for. They go beside the collectives: none waits for the other.

use std::sync::Arc;
use std::time::Duration;

use phalanx_collective::Messenger;
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use super::engine::closed;
use super::job_ranks::JobRanks;
use super::work::{CallbackThread, Completion};
use super::work_queue::Progress;
use crate::memory::Memory;

/// How long one look for messages may take while nothing else wants the postbox.
const LOOK: Duration = Duration::from_micros(50);

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
    /// Takes the message if it is there; whether that is the end of it, well or not.
    fn attempt(&self, postbox: &Open) -> bool {
        // SAFETY: the work's completion keeps the tensor until its end, which is below; torch forbids to touch it.
        let buffer = unsafe { self.memory.write() };
        let result = match postbox.messenger.try_recv(buffer, self.from, self.tag) {
            Ok(None) if self.deadline.passed() => Err(self.is_late(postbox.rank)),
            Ok(None) => return false,
            other => other,
        };
        self.completion.end(result.map_err(|error| postbox.names.with_job_ranks(error)), &self.callbacks);
        true
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

/// A rank's messages until its group is closed.
pub(crate) struct Postbox {
    open: Option<Open>,
    receives: Vec<Receive>,
}

struct Open {
    rank: usize,
    messenger: Messenger,
    names: JobRanks,
}

impl Postbox {
    pub(crate) fn new(rank: usize, messenger: Messenger, names: JobRanks) -> Postbox {
        Postbox { open: Some(Open { rank, messenger, names }), receives: Vec::new() }
    }

    /// Sends a message; the memory is read before it returns.
    ///
    /// # Safety
    /// Until it returns, the memory exists and is written by nobody.
    pub(crate) unsafe fn send(&mut self, memory: Memory, to: usize, tag: u64) -> Result<()> {
        let open = self.open.as_ref().ok_or_else(closed)?;
        // SAFETY: passed on to the caller.
        let bytes = unsafe { memory.read() };
        open.messenger.send(bytes, to, tag).map_err(|error| open.names.with_job_ranks(error))
    }

    /// Takes a message when it comes; at once if it is there.
    pub(crate) fn receive(&mut self, receive: Receive) {
        let Some(open) = &self.open else {
            return receive.completion.end(Err(closed()), &receive.callbacks);
        };
        // The oldest goes first.
        let is_first = self.receives.iter().all(|other| other.tag != receive.tag);
        if !is_first || !receive.attempt(open) {
            self.receives.push(receive);
        }
    }

    /// What is waited for doesn't come any more; what was sent is left to the group, which hands it over as it leaves.
    pub(crate) fn close(&mut self) {
        for receive in self.receives.drain(..) {
            receive.completion.end(Err(closed()), &receive.callbacks);
        }
        self.open = None;
    }
}

impl Progress for Postbox {
    fn has_pending(&self) -> bool {
        !self.receives.is_empty() || self.open.as_ref().is_some_and(|open| open.messenger.has_unsent())
    }

    fn progress(&mut self) -> bool {
        let Some(open) = &self.open else { return false };
        // What is wrong with the group is said to whoever waits for something.
        let _ = open.messenger.progress(LOOK);
        let before = self.receives.len();
        self.receives.retain(|receive| !receive.attempt(open));
        self.receives.len() < before
    }
}
