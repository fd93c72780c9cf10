//! What time alone does to a job: tasks that don't join, nodes that go silent, stops that nobody answers.

use std::time::{Duration, Instant};

use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::{Failure, FailureKind, RankEnd, RankState};

use super::{Course, Gathering, STAGE_GRACE, micros, start};

/// How long after the connect time-out of the first task the hub gives up on hearing from all.
const FALLBACK_MARGIN: Duration = Duration::from_secs(2);
/// How long a node whose connection broke may take to come back.
const RECONNECT_GRACE: Duration = Duration::from_secs(2);

impl Course {
    /// Time passes. Returns when it matters next.
    pub fn tick(&mut self, now: Instant, out: &mut Outbox) -> Option<Instant> {
        if self.outcome.is_some() {
            return None;
        }
        let mut next = Vec::new();
        self.tick_gathering(now, out, &mut next);
        self.tick_nodes(now, out, &mut next);
        self.tick_stacks(now, out, &mut next);
        next.extend(self.stopping.as_ref().map(|s| s.until));
        next.extend(self.stage_ended.map(|at| at + STAGE_GRACE));
        next.extend(self.interrupted.as_ref().map(|(at, _)| *at + STAGE_GRACE));
        self.conclude(now, out);
        next.into_iter().filter(|at| *at > now).min()
    }

    fn tick_gathering(&mut self, now: Instant, out: &mut Outbox, next: &mut Vec<Instant>) {
        if self.stopping.is_some() || self.gathering == Gathering::Placed {
            return;
        }
        if let (Gathering::AtHub, Some(first)) = (self.gathering, self.first_join) {
            let at = first + self.job.policy.connect_timeout + FALLBACK_MARGIN;
            next.push(at);
            if at <= now {
                let missing = self.missing();
                log::warn!(
                    "job {}: {missing} not at the hub after {:.0?}; the tasks meet through Spark instead",
                    self.job.id,
                    now - first
                );
                self.gathering = Gathering::ThroughSpark;
                self.through_spark = true;
                for (partition, _) in self.nodes.iter().filter(|(_, node)| node.join.is_some()) {
                    out.send(*partition, HubMessage::UseFallback);
                }
            }
        }
        let deadline = self.gathering_since + self.job.policy.join_timeout;
        next.push(deadline);
        if deadline <= now {
            // Through Spark, those that can't reach the hub are rightly unknown to it; the others must have met.
            if !self.met_through_spark() {
                let message = format!(
                    "{} did not join within {:.0?}; {} of {} tasks are there. Are the executors up, and can they \
                     connect to the driver?",
                    self.missing(),
                    self.job.policy.join_timeout,
                    self.nodes.values().filter(|node| node.join.is_some()).count(),
                    self.job.tasks
                );
                self.fail(now, start(message), out);
            }
        }
    }

    /// Whether the tasks are known to have met without the hub.
    pub(super) fn met_through_spark(&self) -> bool {
        self.gathering == Gathering::ThroughSpark && self.nodes.values().any(|node| node.placed)
    }

    /// The tasks that are not at the hub.
    pub(super) fn missing(&self) -> String {
        let missing: Vec<String> =
            self.nodes.iter().filter(|(_, n)| n.join.is_none()).map(|(p, _)| p.to_string()).collect();
        match missing.len() {
            1 => format!("the task of partition {}", missing[0]),
            0..=20 => format!("the tasks of partitions {}", missing.join(", ")),
            n => format!("the tasks of partitions {} and {} more", missing[..20].join(", "), n - 20),
        }
    }

    /// Finds nodes that went silent or did not come back.
    fn tick_nodes(&mut self, now: Instant, out: &mut Outbox, next: &mut Vec<Instant>) {
        let mut lost = Vec::new();
        for (partition, node) in self.nodes.iter().filter(|(_, n)| n.placed && !n.done && !n.lost) {
            let silent = node.heard.map(|at| (at + self.job.policy.node_timeout, at));
            let gone = node.gone_since.map(|at| (at + RECONNECT_GRACE, at));
            for (due, since) in silent.into_iter().chain(gone) {
                next.push(due);
                if due <= now {
                    lost.push((*partition, since));
                    break;
                }
            }
        }
        for (partition, since) in lost {
            self.node_lost(now, partition, since, out);
        }
    }

    pub(super) fn node_lost(&mut self, now: Instant, partition: u32, since: Instant, out: &mut Outbox) {
        let host = self.host(partition);
        if let Some(node) = self.nodes.get_mut(&partition) {
            node.lost = true;
        }
        let at_us = micros(since.saturating_duration_since(self.opened));
        let ranks = self.ranks_of.get(&partition).cloned().unwrap_or_default();
        for rank in &ranks {
            self.running.remove(rank);
            if self.ends.contains_key(rank) {
                continue;
            }
            // Once the job is being stopped, a node that goes away is one that was told to.
            let state = if self.stopping.is_some() { RankState::Stopped } else { RankState::Lost };
            let message = format!(
                "nothing was heard of its task for {:.1} s; its executor or host probably ended",
                now.saturating_duration_since(since).as_secs_f64()
            );
            self.ends.insert(
                *rank,
                RankEnd {
                    rank: *rank,
                    host: host.clone(),
                    state,
                    message,
                    error: None,
                    last_lines: Vec::new(),
                    log_path: String::new(),
                    at_us,
                    last_output_us: None,
                },
            );
        }
        if self.stopping.is_none() {
            let message = format!(
                "the node of partition {partition} ({host}) is lost: nothing was heard of its task for {:.1} s; its \
                 executor or host probably ended",
                now.saturating_duration_since(since).as_secs_f64()
            );
            if ranks.is_empty() {
                self.problem.get_or_insert(Failure {
                    host,
                    ..Failure::without_rank(FailureKind::LostNode, message.clone())
                });
            }
            self.stop_all(now, &message, out);
        }
    }
}
