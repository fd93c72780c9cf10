//! Requests for the stacks of the ranks' threads: one request at a time, to the nodes that have ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_types::Failure;
use phalanx_types::stacks::RankStacks;

/// How long nodes may take to tell their ranks' stacks.
const STACKS_WAIT: Duration = Duration::from_secs(5);

/// A request that is under way.
#[derive(Debug)]
struct Asked {
    until: Instant,
    /// The nodes that haven't answered.
    waiting: BTreeSet<u32>,
    stacks: BTreeMap<u32, String>,
    /// What the stacks are wanted for; else the caller asked.
    hang: Option<Box<Failure>>,
}

/// What came of a request.
#[derive(Debug)]
pub(in crate::driver::state) struct Answer {
    pub(in crate::driver::state) stacks: BTreeMap<u32, String>,
    pub(in crate::driver::state) hang: Option<Box<Failure>>,
}

/// The requests of a job; they are numbered over all attempts.
#[derive(Debug, Default)]
pub(in crate::driver::state) struct StackRequests {
    last: u32,
    open: Option<Asked>,
}

impl StackRequests {
    /// Begins a request of these nodes; its number.
    pub(in crate::driver::state) fn ask(
        &mut self,
        now: Instant,
        waiting: BTreeSet<u32>,
        hang: Option<Box<Failure>>,
    ) -> u32 {
        self.last += 1;
        self.open = Some(Asked { until: now + STACKS_WAIT, waiting, stacks: BTreeMap::new(), hang });
        self.last
    }

    /// A node answers.
    pub(in crate::driver::state) fn answer(&mut self, partition: u32, request: u32, ranks: Vec<RankStacks>) {
        if let Some(asked) = self.open.as_mut().filter(|_| self.last == request) {
            asked.waiting.remove(&partition);
            asked.stacks.extend(ranks.into_iter().map(|RankStacks { rank, text }| (rank, text)));
        }
    }

    /// What there is, once all have answered or time is up.
    pub(in crate::driver::state) fn conclude(&mut self, now: Instant) -> Option<Answer> {
        let asked = self.open.take_if(|asked| asked.waiting.is_empty() || asked.until <= now)?;
        Some(Answer { stacks: asked.stacks, hang: asked.hang })
    }

    /// Forgets the request that is under way. Whether there was one.
    pub(in crate::driver::state) fn abandon(&mut self) -> bool {
        self.open.take().is_some()
    }

    pub(in crate::driver::state) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether one is under way because of a hang.
    pub(in crate::driver::state) fn is_about_hang(&self) -> bool {
        self.open.as_ref().is_some_and(|asked| asked.hang.is_some())
    }

    pub(in crate::driver::state) fn until(&self) -> Option<Instant> {
        self.open.as_ref().map(|asked| asked.until)
    }
}
