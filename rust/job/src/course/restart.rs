//! Whether a failed attempt is followed by another: a pure decision when every node has reported its end.
//!
//! RESTART-1: the budget is the job's, whichever rank fails. RESTART-2: ranks start again in place, in the tasks that
//! they were in, if every task is alive, was reached through the hub and is not wanted back by Spark; else the caller
//! submits the Spark stage again. RESTART-3: nothing that a node of an attempt before says counts any more.

use std::time::Instant;

use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Failure, FailureKind};

use super::pace::Pace;
use super::{Course, Gathering, Node};

/// Another attempt begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// Its number; the first is 1.
    pub attempt: u32,
    /// Whether the tasks go on; else the Spark stage has to be submitted again.
    pub in_place: bool,
    /// What is said of it to the caller.
    pub line: String,
}

impl Course {
    /// The present attempt, from 0.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Whether a connection for `attempt` belongs to the stage that runs.
    pub fn admits(&self, attempt: u32) -> bool {
        (self.stage_attempt..=self.attempt).contains(&attempt)
    }

    /// The restarts since the last call.
    pub fn take_restarts(&mut self) -> Vec<Restart> {
        std::mem::take(&mut self.restarts)
    }

    /// Whether nodes that are done wait, since their ranks may have to start again.
    pub(super) fn budget_left(&self) -> bool {
        let cancelled = self.problem.as_ref().is_some_and(|p| p.kind == FailureKind::Cancelled);
        self.outcome.is_none() && self.attempt < self.job.policy.max_restarts && !cancelled
    }

    /// Whether `failure` is one to try again after.
    pub(super) fn is_retryable(&self, failure: &Failure) -> bool {
        self.budget_left() && self.job.policy.restart_on.contains(&failure.kind)
    }

    fn every_task_is_alive(&self) -> bool {
        self.gathering == Gathering::Placed
            && !self.through_spark
            && self.stage_ended.is_none()
            && self.interrupted.is_none()
            && self.nodes.values().all(|node| node.done && !node.lost && node.gone_since.is_none())
    }

    /// Begins the next attempt, after `failure`.
    pub(super) fn restart(&mut self, now: Instant, failure: &Failure, out: &mut Outbox) {
        let in_place = self.every_task_is_alive();
        self.attempt += 1;
        let cause = failure.message.lines().next().unwrap_or_default();
        let how = if in_place { "" } else { "; the Spark stage is submitted again" };
        let of = self.job.policy.max_restarts;
        let line = format!("[phalanx] restart {} of {of}: {cause}{how}", self.attempt);
        log::info!("job {}: {line}", self.job.id);
        for (partition, node) in &self.nodes {
            if in_place {
                out.send(*partition, self.again(cause));
            } else if node.held {
                out.send(*partition, HubMessage::Released);
            }
        }
        if !in_place {
            self.stage_attempt = self.attempt;
        }
        self.stage_ended = None;
        self.gathering = Gathering::AtHub;
        self.gathering_since = now;
        self.through_spark = false;
        self.first_join = None;
        self.nodes.values_mut().for_each(|node| *node = Node::default());
        self.ranks_of.clear();
        self.running.clear();
        self.ends.clear();
        self.phases_of.clear();
        self.problem = None;
        self.interrupted = None;
        self.stopping = None;
        self.activity.clear();
        if self.asking.take().is_some() {
            // No rank runs at this moment.
            self.told_stacks.push(Vec::new());
        }
        self.pace = Pace::default();
        self.last_cause = cause.to_string();
        self.restarts.push(Restart { attempt: self.attempt, in_place, line });
        self.phase(now, 0, None, &format!("restart {}", self.attempt));
    }

    fn again(&self, reason: &str) -> HubMessage {
        HubMessage::Again { attempt: self.attempt, reason: reason.to_string() }
    }

    /// Answers a node of the present stage that hasn't heard of the present attempt yet.
    pub(super) fn message_of_the_past(&self, partition: u32, message: &NodeMessage, out: &mut Outbox) {
        match message {
            NodeMessage::Ping => out.send(partition, HubMessage::Pong),
            NodeMessage::Join(_) | NodeMessage::Done { .. } => {
                out.send(partition, self.again(&self.last_cause));
            }
            // RESTART-3
            _ => {}
        }
    }

    /// Lets the nodes go that wait for the decision.
    pub(super) fn release_all(&mut self, out: &mut Outbox) {
        for (partition, node) in &mut self.nodes {
            if std::mem::take(&mut node.held) {
                out.send(*partition, HubMessage::Released);
            }
        }
    }
}
