//! When an attempt is over. Once everything is known, or never will be, this gives the outcome or another attempt.
//!
//! DRIVER-18 (ranks-are-gone): a job that is cancelled, by its caller or through Spark, is over when its ranks are
//! gone, or when their grace and the guards' time are over. It doesn't matter that Spark ends the tasks sooner. A node
//! that is there is heard to its end: the last output of its ranks comes after the word that they ended.
//!
//! DRIVER-19 (serves-to-the-end): a node that serves the store or blocks stays until all ranks have ended well, or the
//! ranks are to be ended. The hub knows when that is, and tells each node until the node says that it is done.
//!
//! DRIVER-49 (late-ends-told): where processes of ranks ended badly once their results were whole, which fails nothing,
//! the caller is told so in a line for each way of ending, also where the attempt failed: others may miss those ranks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::stacks::ranges;
use phalanx_types::{Failure, RankExit, RankState};

use super::job_state::{JobState, STAGE_GRACE};
use super::news::Point;
use super::node::Node;
use super::phase::{JobOutcome, JobPhase, Stopping};
use super::restart::{Next, Renewal};

/// Ranks that still run so long after they were told to end are told of.
pub(super) const TELL_AFTER: Duration = Duration::from_secs(2);

impl JobState {
    /// Decides what is to be decided by now. Every event ends with it.
    pub(super) fn conclude(&mut self, now: Instant, out: &mut Outbox) {
        self.go_on_with_notices(now, out);
        self.tell_cost(now);
        let stage_is_over = self.stage_ended.is_some_and(|at| now >= at + STAGE_GRACE);
        match &self.phase {
            JobPhase::Over(_) => {}
            JobPhase::Joining(_) | JobPhase::Running(_) => {
                if self.all_over() && self.ranks.all_finished() {
                    self.announce_late_ends();
                    let outcome = JobOutcome::Finished(self.outcomes_at(self.since_open_us(now)));
                    self.end(now, outcome, out);
                } else if stage_is_over || self.all_over() {
                    self.failed(now, self.unexplained(now), out);
                }
            }
            JobPhase::Stopping(stopping) => {
                let is_too_late = now >= stopping.until;
                if self.stage_may_explain(now, stopping) && !is_too_late {
                    return;
                }
                // One that has its place may come back, until it counts as lost.
                let is_left = |node: &Node| !(node.is_over() || node.is_away() || self.is_outside(node));
                let nobody_left = !self.nodes.values().any(is_left);
                let stage_is_over = stage_is_over && !self.outlives_stage_any(now);
                if nobody_left || stage_is_over || is_too_late {
                    let is_known = stopping.unclear_since.is_some();
                    let (failure, why) = self.cause(now, stopping);
                    if self.grow(now, out) {
                        return;
                    }
                    if !is_known {
                        let text = format!("{}; it is the cause, since {why}", failure.message);
                        self.reason(Level::Debug, text);
                    }
                    self.failed(now, failure, out);
                }
            }
        }
    }

    /// Whether Spark has ended the tasks of a job that was cancelled, and this one's ranks may still have their grace,
    /// or its node has not said yet that it told everything.
    pub(super) fn outlives_stage(&self, partition: u32, now: Instant) -> bool {
        let stopping = self.phase.stopping().filter(|stopping| stopping.is_cancelled());
        let in_grace = stopping.is_some_and(|stopping| now < stopping.ranks_until);
        let is_there = self.nodes.get(&partition).is_some_and(Node::speaks);
        self.stage_ended.is_some() && in_grace && (is_there || !self.ranks.running_on(partition).is_empty())
    }

    fn outlives_stage_any(&self, now: Instant) -> bool {
        self.nodes.iter().any(|(partition, node)| !node.is_over() && self.outlives_stage(*partition, now))
    }

    /// Tells the caller, once, which ranks make use of their grace.
    pub(super) fn announce_who_takes_time(&mut self, now: Instant) {
        let Some(stopping) = self.phase.stopping_mut() else { return };
        if stopping.told || now < stopping.since + TELL_AFTER {
            return;
        }
        let running: Vec<u32> = self.ranks.running().map(|(rank, _)| rank).collect();
        if running.is_empty() {
            return;
        }
        stopping.told = true;
        let left = stopping.ranks_until.saturating_duration_since(now).as_secs();
        let (verb, them) = if running.len() == 1 { ("runs", "it") } else { ("run", "them") };
        let who = ranges(&running);
        self.announce(format!(
            "[phalanx] {who} still {verb} after being told to end; Phalanx kills {them} in {left} s"
        ));
    }

    /// Tells the caller which ranks had left their results when their processes ended otherwise than well.
    fn announce_late_ends(&mut self) {
        let mut ends: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        let late = |exit: &&RankExit| exit.state == RankState::Finished && !exit.message.is_empty();
        for exit in self.ranks.exits().filter(late) {
            ends.entry(&exit.message).or_default().push(exit.rank);
        }
        let line = |(how, ranks): (&str, Vec<u32>)| match ranks[..] {
            [rank] => format!("rank {rank} had returned its result, and then its process {how}"),
            _ => format!("{} had returned their results, and then each process {how}", ranges(&ranks)),
        };
        for line in ends.into_iter().map(line).collect::<Vec<_>>() {
            self.reason(Level::Info, &line);
            self.announce(format!("[phalanx] {line}"));
        }
    }

    /// Whether Spark ended a task, no other cause is known, and the stage's own word on it may still come.
    fn stage_may_explain(&self, now: Instant, stopping: &Stopping) -> bool {
        let waits = stopping.interrupted().is_some_and(|(at, _)| now < *at + STAGE_GRACE);
        waits && stopping.problem().is_none() && self.stage_ended.is_none() && !self.ranks.any_failed()
    }

    /// The attempt is over, and failed.
    fn failed(&mut self, now: Instant, failure: Failure, out: &mut Outbox) {
        let failure = self.as_preemption(now, failure);
        match self.after(&failure, now) {
            Next::Wait => {
                if let Some(stopping) = self.phase.stopping_mut() {
                    stopping.unclear_since.get_or_insert(now);
                }
            }
            Next::Restart { in_place, is_smaller } => {
                self.announce_late_ends();
                self.blame_host(now, &failure);
                let renewal = match is_smaller {
                    true => Renewal::smaller(&failure),
                    false => Renewal::after(&failure),
                };
                self.restart(now, renewal, in_place, out);
            }
            Next::Outcome => {
                self.announce_late_ends();
                self.blame_host(now, &failure);
                let restarts = self.attempts.present.restarts();
                self.end(now, JobOutcome::Failed(Box::new(Failure { restarts, ..failure })), out);
            }
        }
    }

    fn end(&mut self, now: Instant, outcome: JobOutcome, out: &mut Outbox) {
        debug_assert!(
            matches!(outcome, JobOutcome::Failed(_))
                || self.ranks.exits().all(|exit| exit.state == RankState::Finished),
            "TYPES-4"
        );
        let newcomers = self.nodes.iter().filter(|(_, node)| self.is_newcomer(node));
        newcomers.for_each(|(partition, _)| out.send(*partition, HubMessage::Released));
        self.release_held(out);
        self.release_carriers(out);
        self.step_all(Node::released);
        self.phase.end(outcome);
        self.seats.touch();
        self.point(now, 0, Point::AllEnded);
    }

    /// Tells the nodes once that all ranks have ended well. DRIVER-19
    pub(super) fn stop_serving(&self, out: &mut Outbox) {
        if !self.ranks.all_finished() {
            return;
        }
        for partition in self.nodes.keys().filter(|partition| self.may_stop_serving(**partition)) {
            out.send(*partition, HubMessage::StopServing);
        }
    }

    /// Whether all ranks have ended well, and this node has not said yet that it is done.
    pub(super) fn may_stop_serving(&self, partition: u32) -> bool {
        matches!(self.phase, JobPhase::Running(_))
            && self.ranks.all_finished()
            && matches!(self.nodes.get(&partition), Some(Node::Placed { .. }))
    }

    /// Lets the nodes go that wait for the decision.
    pub(super) fn release_held(&self, out: &mut Outbox) {
        for (partition, node) in &self.nodes {
            if matches!(node, Node::Held { .. }) {
                out.send(*partition, HubMessage::Released);
            }
        }
    }
}
