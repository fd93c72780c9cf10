//! Whether another attempt follows a failed one: a pure decision when every node has reported its end.
//!
//! DRIVER-30 (one-budget): the budget is the job's, whichever rank fails.
//! DRIVER-31 (in-place-or-resubmit): ranks start again in place, in the tasks that they were in, if every task is
//! alive, and Spark has not asked for it to end. Otherwise the caller submits the Spark
//! stage again. If a task should have said something, the decision waits until it has, or is lost.
//! DRIVER-32 (past-is-past): what a node of an earlier attempt says no longer counts.

use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Failure};

use super::job_state::JobState;
use super::news::{Point, Restart};
use super::node::Node;
use super::phase::JobPhase;
use super::ranks::Ranks;
use super::reports::ReportNumbers;
use super::straggler::Stragglers;

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It isn't clear yet: whether a task is still there shows soon.
    Wait,
    /// Another attempt.
    Restart {
        /// Whether the tasks go on.
        in_place: bool,
    },
    /// The job is over.
    Outcome,
}

impl JobState {
    /// What follows an attempt that failed so.
    pub(super) fn after(&self, failure: &Failure, now: Instant) -> Next {
        if !self.budget_left() || !self.job.policy.restart_on.contains(&failure.kind) {
            return Next::Outcome;
        }
        let tasks_stay = self.phase.stopping().is_some_and(|stopping| stopping.leaves_tasks_as_they_are());
        let in_place = !self.attempts.has_lost_blocks
            && tasks_stay
            && self.stage_ended.is_none()
            && self.nodes.values().all(Node::is_ready_again);
        let timeout = self.job.policy.node_timeout;
        match in_place && self.nodes.values().any(|node| node.is_overdue(now, timeout)) {
            true => Next::Wait,
            false => Next::Restart { in_place },
        }
    }

    /// Begins the next attempt, after `failure`.
    pub(super) fn restart(&mut self, now: Instant, failure: &Failure, in_place: bool, out: &mut Outbox) {
        let attempt = self.attempts.present.next();
        self.attempts.present = attempt;
        self.generation = self.generation.next();
        let cause = failure.message.lines().next().unwrap_or_default();
        let how = if in_place { "" } else { "; the Spark stage is submitted again" };
        let of = self.job.policy.max_restarts;
        let line = format!("[phalanx] restart {attempt} of {of}: {cause}{how}");
        self.reason(Level::Info, &line);
        self.attempts.has_lost_blocks = false;
        self.attempts.cause = cause.to_string();
        if in_place {
            for partition in self.nodes.keys() {
                out.send(*partition, self.again());
            }
            self.step_all(Node::called);
        } else {
            self.release_held(out);
            self.step_all(|_| Node::Absent);
            self.attempts.of_stage = attempt;
        }
        self.release_carriers(out);
        self.stage_ended = None;
        self.phase = JobPhase::joining(now);
        self.ranks = Ranks::new(self.job.ranks, self.job.policy.hang_timeout);
        self.reports = ReportNumbers::default();
        self.stragglers = Stragglers::default();
        // No rank runs at this moment.
        self.news.stacks.extend(self.stacks.abandon().then(Vec::new));
        self.news.restarts.push(Restart {
            attempt,
            generation: self.generation,
            in_place,
            rank: failure.rank,
            cause: cause.to_string(),
            line,
        });
        self.point(now, 0, Point::Restart(attempt));
    }

    fn again(&self) -> HubMessage {
        HubMessage::Again { attempt: self.attempts.present, reason: self.attempts.cause.clone() }
    }

    /// Answers a node that speaks for an attempt that is over.
    pub(super) fn message_of_the_past(
        &self,
        partition: u32,
        attempt: Attempt,
        message: &NodeMessage,
        out: &mut Outbox,
    ) {
        let is_of_this_stage = attempt >= self.attempts.of_stage;
        let goes_on = is_of_this_stage && self.outcome().is_none();
        match message {
            NodeMessage::Ping => {
                out.send(partition, HubMessage::Pong);
                if !is_of_this_stage {
                    let reason = "the Spark stage is submitted again".into();
                    out.send(partition, HubMessage::Stop { reason });
                }
            }
            // It hasn't heard of the present attempt yet.
            NodeMessage::Join(_) | NodeMessage::Done { .. } if goes_on => {
                out.send(partition, self.again());
            }
            NodeMessage::Join(_) | NodeMessage::Done { .. } => out.send(partition, HubMessage::Released),
            // DRIVER-32
            _ => {}
        }
    }
}
