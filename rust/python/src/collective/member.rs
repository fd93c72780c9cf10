//! A rank's membership with its messages: receiving goes on beside the collectives.

use std::sync::Arc;
use std::time::Duration;

use phalanx_collective::Group;
use phalanx_types::{Deadline, Error, ErrorKind, Result};

use super::call::{Call, Memory};
use super::job_ranks::JobRanks;
use super::lane::Subject;
use super::ticket::{Callbacks, Progress};

/// How long one look for messages may take while nothing else wants the group.
const LOOK: Duration = Duration::from_micros(50);

/// A message that is waited for.
pub(crate) struct Receive {
    pub(crate) memory: Memory,
    pub(crate) from: Option<usize>,
    pub(crate) tag: u64,
    pub(crate) deadline: Deadline,
    pub(crate) timeout: Duration,
    pub(crate) progress: Arc<Progress>,
    pub(crate) callbacks: Arc<Callbacks>,
}

impl Receive {
    /// Takes the message if it is there; whether that is the end of it, well or not.
    fn attempt(&self, group: &mut Group, names: &JobRanks) -> bool {
        // SAFETY: the ticket's progress keeps the tensor until its end, which is below; torch forbids to touch it.
        let buffer = unsafe { self.memory.write() };
        let result = match group.try_recv(buffer, self.from, self.tag) {
            Ok(None) if self.deadline.passed() => Err(self.is_late(group)),
            Ok(None) => return false,
            other => other,
        };
        self.progress.end(result.map_err(|error| names.in_words_of_the_job(error)), &self.callbacks);
        true
    }

    fn is_late(&self, group: &Group) -> Error {
        let from = self.from.map_or("any rank".into(), |from| format!("rank {from}"));
        let text = format!(
            "rank {}: no message with tag {} from {from} after {:.1} s",
            group.rank(),
            self.tag,
            self.timeout.as_secs_f64()
        );
        Error::new(ErrorKind::Timeout, text)
    }
}

/// A rank's group until it is closed, and what it waits for.
pub(crate) struct Member {
    group: Option<Group>,
    receives: Vec<Receive>,
    names: JobRanks,
}

impl Member {
    pub(crate) fn new(group: Group, names: JobRanks) -> Member {
        Member { group: Some(group), receives: Vec::new(), names }
    }

    /// Does something with the group; its errors name ranks as the job does.
    fn with_group<T>(&mut self, work: impl FnOnce(&mut Group) -> Result<T>) -> Result<T> {
        let group = self.group.as_mut().ok_or_else(closed)?;
        work(group).map_err(|error| self.names.in_words_of_the_job(error))
    }

    /// Runs calls one after the other.
    ///
    /// # Safety
    /// As [`Call::perform`].
    pub(crate) unsafe fn perform(&mut self, calls: &[Call], deadline: Deadline) -> Result<()> {
        self.with_group(|group| {
            for call in calls {
                let left = deadline.left().unwrap_or(Duration::MAX);
                group.set_timeout(left.max(Duration::from_millis(1)));
                // SAFETY: passed on to the caller.
                unsafe { call.perform(group)? };
            }
            Ok(())
        })
    }

    /// Sends a message.
    ///
    /// # Safety
    /// Until it returns, the memory exists and is written by nobody.
    pub(crate) unsafe fn send(&mut self, memory: Memory, to: usize, tag: u64) -> Result<()> {
        // SAFETY: passed on to the caller.
        self.with_group(|group| group.send(unsafe { memory.read() }, to, tag))
    }

    /// Takes a message when it comes; at once if it is there.
    pub(crate) fn receive(&mut self, receive: Receive) {
        let Some(group) = &mut self.group else {
            return receive.progress.end(Err(closed()), &receive.callbacks);
        };
        // The oldest goes first.
        let is_first = self.receives.iter().all(|other| other.tag != receive.tag);
        if !is_first || !receive.attempt(group, &self.names) {
            self.receives.push(receive);
        }
    }

    /// Leaves the group.
    pub(crate) fn leave(&mut self) {
        for receive in self.receives.drain(..) {
            receive.progress.end(Err(closed()), &receive.callbacks);
        }
        self.group = None;
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the process group is closed")
}

impl Subject for Member {
    fn has_background(&self) -> bool {
        !self.receives.is_empty() || self.group.as_ref().is_some_and(Group::has_unsent)
    }

    fn background(&mut self) -> bool {
        let Some(group) = &mut self.group else { return false };
        // What is wrong with the group is said to whoever waits for something.
        let _ = group.progress(LOOK);
        let before = self.receives.len();
        self.receives.retain(|receive| !receive.attempt(group, &self.names));
        self.receives.len() < before
    }
}
