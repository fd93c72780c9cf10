//! Whether another attempt follows a failed one: a pure decision when every node has reported its end.
//!
//! DRIVER-30 (one-budget): the budget is the job's, whichever rank fails.
//! DRIVER-31 (in-place-or-resubmit): ranks start again in place, in the tasks that they were in, if every task is
//! alive, Spark has not asked for it to end, and no host of theirs is to go. In a gang of tasks those that live stay
//! also where others went: Spark starts the others again by themselves. Otherwise the caller submits the Spark stage
//! again. If a task should have said something, the decision waits until it has, or is lost.
//! DRIVER-60 (blocks-before-seats): where executors have blocks of the data, a gang of tasks of which one went is
//! submitted again as a whole. So no task has a slot while the blocks that went with an executor are written again.
//! DRIVER-32 (past-is-past): what a node of an earlier attempt says no longer counts.

use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Failure, FailureKind, Gang};

use super::job_state::JobState;
use super::news::{Point, Restart};
use super::node::Node;
use super::phase::{JobPhase, Stopping};
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
        let is_preemption = failure.kind == FailureKind::Preempted;
        let is_allowed = match is_preemption {
            true => self.preemption_budget_left(),
            false => self.budget_left() && self.job.policy.restart_on.contains(&failure.kind),
        };
        if !is_allowed {
            return Next::Outcome;
        }
        // Nobody comes again for the seat of one that was done.
        let is_replaced = |node: &Node| match is_preemption {
            true => node.is_gone(),
            false => node.is_over(),
        };
        let stays = |node: &Node| node.is_ready_again() || (self.replaces_tasks() && is_replaced(node));
        let must_move = self.attempts.has_lost_blocks || (is_preemption && self.is_on_going_host(now));
        let in_place = !must_move
            && self.phase.stopping().is_some_and(Stopping::had_places)
            && self.stage_ended.is_none()
            && self.nodes.values().all(stays);
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
        let gone = self.nodes.values().filter(|node| !node.is_ready_again()).count();
        let how = match in_place {
            true if gone == 0 => String::new(),
            true if gone == 1 => format!("; 1 of {} tasks is replaced", self.job.tasks),
            true => format!("; {gone} of {} tasks are replaced", self.job.tasks),
            false if self.job.policy.gang == Gang::Tasks => "; all tasks are submitted again".into(),
            false => "; the Spark stage is submitted again".into(),
        };
        let is_preemption = failure.kind == FailureKind::Preempted;
        self.attempts.preemptions += u32::from(is_preemption);
        self.begin_attempt_of_notices(now, &failure.host, is_preemption);
        self.cooldown.begin_attempt();
        let (restarts, of) = (self.restarts(), self.job.policy.max_restarts);
        let line = match is_preemption {
            true => format!("[phalanx] preempted, restart {attempt}: {cause}{how}"),
            false => format!("[phalanx] restart {restarts} of {of}: {cause}{how}"),
        };
        self.reason(Level::Info, &line);
        self.attempts.has_lost_blocks = false;
        self.attempts.cause = cause.to_string();
        if in_place {
            for (partition, _) in self.nodes.iter().filter(|(_, node)| node.is_ready_again()) {
                out.send(*partition, self.again());
            }
            let nodes = &self.nodes;
            self.seats.free(|partition| !nodes.get(&partition).is_some_and(Node::is_ready_again));
            self.step_all(Node::called);
        } else {
            self.seats.free(|_| true);
            self.cooldown.begin_stage();
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

    /// Whether a task that went is replaced while the others stay. DRIVER-60
    pub(super) fn replaces_tasks(&self) -> bool {
        self.job.policy.gang == Gang::Tasks && !self.job.policy.executor_blocks
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
                // One that was lost doesn't know yet that its ranks are to end; who is done passes over it.
                let reason = match is_of_this_stage {
                    true => self.attempts.cause.clone(),
                    false => "the Spark stage is submitted again".into(),
                };
                out.send(partition, HubMessage::Stop { reason });
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
