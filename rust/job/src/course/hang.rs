//! Ranks that stopped making progress, and what their threads were doing.
//!
//! HANG-1: a rank hangs when its node tells that for `hang_timeout` it has written nothing, its main thread has run no
//! Python, it has reported nothing, and no collective operation of the `phalanx` backend has begun or ended. The job
//! hangs when all ranks have started and every one that still runs hangs. HANG-2: nothing is ended before the stacks
//! have been asked for, and answered or waited for [`STACKS_WAIT`]. HANG-3: a job that can't be watched says so.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, RankActivity};
use phalanx_types::stacks::{RankStacks, group};
use phalanx_types::{Failure, FailureKind};

use super::Course;

/// How long nodes may take to tell their ranks' stacks.
const STACKS_WAIT: Duration = Duration::from_secs(5);

/// A request for stacks that is under way.
#[derive(Debug)]
pub(super) struct Asking {
    request: u32,
    until: Instant,
    /// The nodes that haven't answered.
    waiting: BTreeSet<u32>,
    stacks: BTreeMap<u32, String>,
    /// What the stacks are wanted for; else the caller asked.
    hang: Option<Box<Failure>>,
}

impl Course {
    /// Takes what a node says of its ranks.
    pub(super) fn activity(&mut self, now: Instant, ranks: Vec<RankActivity>, out: &mut Outbox) {
        // What ranks do once they are being ended is of no interest.
        if self.stopping.is_some() || self.outcome.is_some() {
            return;
        }
        for rank in ranks {
            self.take_report(&rank);
            self.activity.insert(rank.rank, rank);
        }
        self.look_for_stragglers(now);
        self.look_for_hang(now, out);
    }

    fn look_for_hang(&mut self, now: Instant, out: &mut Outbox) {
        let timeout = self.job.policy.hang_timeout;
        let all_started = self.running.len() + self.ends.len() == self.job.ranks as usize;
        let asked = self.asking.as_ref().is_some_and(|asking| asking.hang.is_some());
        if timeout.is_zero() || !all_started || asked {
            return;
        }
        let idle = |rank: &u32| self.activity.get(rank).map(|seen| Duration::from_millis(seen.idle_ms));
        if self.running.is_empty() || !self.running.iter().all(|rank| idle(rank) >= Some(timeout)) {
            return;
        }
        let longest = |rank: &&RankActivity| (rank.stopped, rank.idle_ms);
        let running = self.running.iter().filter_map(|rank| self.activity.get(rank));
        let Some(first) = running.max_by_key(longest) else { return };
        let host = self.host_of(first.rank);
        let doing = match (first.stopped, first.doing.as_str()) {
            (true, _) => "; its process is stopped".to_string(),
            (false, "") => self.left_alone_by(),
            (false, doing) => format!("; it was in {doing}{}", self.left_alone_by()),
        };
        let message = format!(
            "rank {} ({host}) hangs: no running rank has made progress for {:.1?}{doing}",
            first.rank, timeout
        );
        let rank = Some(first.rank);
        let failure = Failure { rank, host, ..Failure::without_rank(FailureKind::Hang, message) };
        self.ask(now, Some(Box::new(failure)), out);
    }

    /// The tasks have just met through Spark: of those that didn't come to the hub no progress will be heard.
    pub(super) fn warn_of_unwatched_ranks(&mut self) {
        let first = self.nodes.values().filter(|node| node.placed).count() == 1;
        let all_here = self.nodes.values().all(|node| node.join.is_some());
        if first && !all_here && !self.job.policy.hang_timeout.is_zero() {
            let missing = self.missing();
            self.announce(format!(
                "[phalanx] a hang of this run will not be noticed: {missing} can't connect to the driver"
            ));
        }
    }

    /// The caller wants to know what the ranks do; [`Course::take_stacks`] has it soon.
    pub fn ask_for_stacks(&mut self, now: Instant, out: &mut Outbox) {
        if self.asking.is_none() {
            self.ask(now, None, out);
        }
    }

    fn ask(&mut self, now: Instant, hang: Option<Box<Failure>>, out: &mut Outbox) {
        self.requests += 1;
        let request = self.requests;
        let has_ranks = |partition: &u32| self.ranks_of.contains_key(partition);
        let waiting: BTreeSet<u32> = self
            .nodes
            .iter()
            .filter(|(partition, node)| !node.done && !node.lost && has_ranks(partition))
            .map(|(partition, _)| *partition)
            .collect();
        for partition in &waiting {
            out.send(*partition, HubMessage::Stacks { request });
        }
        self.asking =
            Some(Asking { request, until: now + STACKS_WAIT, waiting, stacks: BTreeMap::new(), hang });
        self.tick_stacks(now, out, &mut Vec::new());
    }

    /// A node answers.
    pub(super) fn stacks(
        &mut self,
        now: Instant,
        partition: u32,
        request: u32,
        ranks: Vec<RankStacks>,
        out: &mut Outbox,
    ) {
        let Some(asking) = self.asking.as_mut().filter(|asking| asking.request == request) else { return };
        asking.waiting.remove(&partition);
        asking.stacks.extend(ranks.into_iter().map(|RankStacks { rank, text }| (rank, text)));
        self.tick_stacks(now, out, &mut Vec::new());
    }

    /// Concludes a request when all have answered, or time is up.
    pub(super) fn tick_stacks(&mut self, now: Instant, out: &mut Outbox, next: &mut Vec<Instant>) {
        let over = |asking: &mut Asking| asking.waiting.is_empty() || asking.until <= now;
        let Some(asking) = self.asking.take_if(over) else {
            return next.extend(self.asking.as_ref().map(|asking| asking.until));
        };
        let mut stacks: Vec<RankStacks> =
            asking.stacks.into_iter().map(|(rank, text)| RankStacks { rank, text }).collect();
        for rank in self
            .running
            .iter()
            .filter(|rank| !stacks.iter().any(|of| of.rank == **rank))
            .copied()
            .collect::<Vec<_>>()
        {
            stacks.push(RankStacks { rank, text: "(its node did not answer in time)".into() });
        }
        if let Some(failure) = asking.hang {
            self.fail(now, Failure { stacks: group(&stacks), ..*failure }, out);
        }
        self.told_stacks.push(stacks);
    }

    /// Stacks that have come since the last call, whoever asked for them: an answer to [`Course::ask_for_stacks`].
    pub fn take_stacks(&mut self) -> Vec<Vec<RankStacks>> {
        std::mem::take(&mut self.told_stacks)
    }

    pub(super) fn host_of(&self, rank: u32) -> String {
        let of = self.ranks_of.iter().find(|(_, ranks)| ranks.contains(&rank)).map(|(p, _)| *p);
        of.map(|partition| self.host(partition)).unwrap_or_default()
    }
}
