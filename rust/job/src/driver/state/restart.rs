//! Whether another attempt follows a failed one: a pure decision when every node has reported its end.
//!
//! DRIVER-30 (one-budget): the budget is the job's, whichever rank fails.
//! DRIVER-31 (in-place-or-resubmit): ranks start again in place, in the tasks that they were in, if every task is
//! alive, Spark has not asked for it to end, and no host or executor of theirs is to go. In a gang of tasks those that
//! live stay also where others went: Spark starts the others again by themselves. Otherwise the caller submits the
//! Spark stage again. If a task should have said something, the decision waits until it has, or is lost.
//! DRIVER-71 (no-wait-for-ever): while one node after the other goes, there is always one that should have said
//! something. So an elastic job that has enough without them waits [`RECONNECT_GRACE`] for all of them together.
//! DRIVER-60 (blocks-before-seats): where executors have blocks of the data, a gang of tasks of which one went is
//! submitted again as a whole. So no task has a slot while the blocks that went with an executor are written again.
//! DRIVER-32 (past-is-past): what a node of an earlier attempt says no longer counts.

use std::time::{Duration, Instant};

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::run_snapshot::RestartKind;
use phalanx_types::{Attempt, Failure, FailureKind, Gang};

use super::job_state::JobState;
use super::news::{Point, Restart};
use super::node::{Node, RECONNECT_GRACE};
use super::phase::{JobPhase, Stopping};
use super::ranks::Ranks;
use super::reports::ReportNumbers;
use super::watching::Stragglers;

/// What follows a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It isn't clear yet: whether a task is still there shows soon.
    Wait,
    /// Another attempt.
    Restart {
        /// Whether the tasks go on.
        in_place: bool,
        /// Whether an elastic job goes on with those that it has left.
        is_smaller: bool,
    },
    /// The job is over.
    Outcome,
}

/// Another attempt, and why.
#[derive(Debug)]
pub(super) struct Renewal {
    /// Only a replacement counts as a restart.
    kind: RestartKind,
    /// In a sentence.
    cause: String,
    /// The rank that failed, if one did.
    rank: Option<u32>,
    /// The host on which it was; empty if not known.
    host: String,
}

impl Renewal {
    pub(super) fn after(failure: &Failure) -> Renewal {
        let kind = match failure.kind {
            FailureKind::Preempted => RestartKind::Preempted,
            _ => RestartKind::Replaced,
        };
        let cause = failure.message.lines().next().unwrap_or_default().to_string();
        Renewal { kind, cause, rank: failure.rank, host: failure.host.clone() }
    }

    /// An elastic job goes on without the tasks that it lost.
    pub(super) fn smaller(failure: &Failure) -> Renewal {
        Renewal { kind: RestartKind::Resized, ..Renewal::after(failure) }
    }

    /// An elastic job goes on with more tasks.
    pub(super) fn grown(cause: String) -> Renewal {
        Renewal { kind: RestartKind::Resized, cause, rank: None, host: String::new() }
    }
}

impl JobState {
    /// What follows an attempt that failed so.
    pub(super) fn after(&self, failure: &Failure, now: Instant) -> Next {
        let is_preemption = failure.kind == FailureKind::Preempted;
        // Nobody comes again for the seat of one that was done.
        let is_replaced = |node: &Node| match is_preemption {
            true => node.is_gone(),
            false => node.is_over(),
        };
        let is_free = |node: &Node| self.job.is_elastic() && (node.is_over() || self.is_outside(node));
        let stays = |node: &Node| {
            node.is_ready_again() || (self.replaces_tasks() && (is_replaced(node) || is_free(node)))
        };
        let is_leaving = is_preemption && self.has_leaving(now);
        let goes_on_here = self.job.is_elastic() && self.are_enough(now);
        let must_move = self.attempts.has_lost_blocks || (is_leaving && !goes_on_here);
        let in_place = !must_move
            && self.phase.stopping().is_some_and(Stopping::had_places)
            && self.stage_ended.is_none()
            && self.nodes.values().all(stays);
        let is_smaller =
            in_place && failure.kind == FailureKind::LostNode && goes_on_here && self.replaces_tasks();
        let is_allowed = match is_preemption {
            true => self.preemption_budget_left(),
            false if is_smaller => self.may_resize(), // DRIVER-70
            false => self.budget_left() && self.job.policy.restart_on.contains(&failure.kind),
        };
        if !is_allowed {
            return Next::Outcome;
        }
        let timeout = self.job.policy.node_timeout;
        let is_unclear = in_place && self.nodes.values().any(|node| node.is_overdue(now, timeout));
        let since = self.phase.stopping().and_then(|stopping| stopping.unclear_since);
        // DRIVER-71
        let goes_without = goes_on_here && since.is_some_and(|since| now >= since + RECONNECT_GRACE);
        match is_unclear && !goes_without {
            true => Next::Wait,
            false => Next::Restart { in_place, is_smaller },
        }
    }

    /// Begins the next attempt.
    pub(super) fn restart(&mut self, now: Instant, renewal: Renewal, in_place: bool, out: &mut Outbox) {
        let since = self.phase.stopping().map_or(now, |stopping| stopping.since);
        let attempt = self.attempts.present.next();
        self.attempts.present = attempt;
        self.generation = self.generation.next();
        let Renewal { kind, cause, rank, host } = renewal;
        self.sizes.ended(since, self.ranks.newest_step(), kind);
        self.attempts.preemptions += u32::from(kind == RestartKind::Preempted);
        self.attempts.resizes += u32::from(kind == RestartKind::Resized);
        let line = self.restart_line(kind, &cause, in_place);
        self.reason(Level::Info, &line);
        self.begin_attempt_of_notices(now, &host, kind == RestartKind::Preempted);
        self.cooldown.begin_attempt();
        self.attempts.has_lost_blocks = false;
        self.attempts.cause = cause.clone();
        if in_place {
            self.call_again(now, out);
        } else {
            self.seats.free(|_| true);
            self.sizes.keep(|_| false);
            self.cooldown.begin_stage();
            self.release_held(out);
            self.step_all(|_| Node::Absent);
            self.attempts.of_stage = attempt;
        }
        let is_there = |partition| self.nodes.get(&partition).is_some_and(|node| *node != Node::Absent);
        self.notices.keep_executors(|task| self.seats.partition_of(task).is_some_and(is_there));
        self.release_carriers(out);
        self.stage_ended = None;
        let patience = if in_place { Duration::ZERO } else { self.job.policy.elastic.patience };
        self.phase = JobPhase::joining(now, patience);
        self.ranks = Ranks::new(self.job.ranks, self.job.policy.hang_timeout);
        self.reports = ReportNumbers::default();
        self.stragglers = Stragglers::default();
        // No rank runs at this moment.
        self.news.stacks.extend(self.stacks.abandon().then(Vec::new));
        self.news.restarts.push(Restart {
            attempt,
            generation: self.generation,
            kind,
            in_place,
            rank,
            cause,
            line,
        });
        self.point(now, 0, Point::Restart(attempt));
    }

    /// What the caller is told of an attempt that begins.
    fn restart_line(&self, kind: RestartKind, cause: &str, in_place: bool) -> String {
        let gone = self.nodes.values().filter(|node| !node.stays_in_place()).count();
        let how = match in_place {
            true if gone == 0 || self.job.is_elastic() => String::new(),
            true if gone == 1 => format!("; 1 of {} tasks is replaced", self.job.tasks),
            true => format!("; {gone} of {} tasks are replaced", self.job.tasks),
            false if self.job.policy.gang == Gang::Tasks => "; all tasks are submitted again".into(),
            false => "; the Spark stage is submitted again".into(),
        };
        let (attempt, restarts, of) = (self.attempts.present, self.restarts(), self.job.policy.max_restarts);
        match kind {
            RestartKind::Preempted => format!("[phalanx] preempted, restart {attempt}: {cause}{how}"),
            RestartKind::Replaced => format!("[phalanx] restart {restarts} of {of}: {cause}{how}"),
            RestartKind::Resized => format!("[phalanx] resized, restart {attempt}: {cause}{how}"),
        }
    }

    /// Has the tasks that stay join again. Those of an elastic job that are to go are given up.
    fn call_again(&mut self, now: Instant, out: &mut Outbox) {
        let staying: Vec<(u32, bool)> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.stays_in_place())
            .map(|(partition, node)| (*partition, self.is_leaving(now, *partition, node)))
            .collect();
        for (partition, leaves) in staying {
            if leaves {
                out.send(partition, HubMessage::GivenUp { reason: "its host or executor is to go".into() });
                self.step(partition, |_| (Node::Absent, ()));
            } else {
                out.send(partition, self.again());
            }
        }
        let nodes = &self.nodes;
        let stays = |partition: u32| nodes.get(&partition).is_some_and(Node::stays_in_place);
        self.seats.free(|partition| !stays(partition));
        self.sizes.keep(stays);
        self.step_all(Node::called);
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
