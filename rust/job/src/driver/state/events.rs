//! What can happen to a job: facts from nodes, the fate of the Spark stage, the caller's wishes, time.

use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Failure, FailureKind, RankExit};

use super::ending::TELL_AFTER;
use super::job_state::{JobState, STAGE_GRACE};
use super::news::Point;
use super::node::{Node, RECONNECT_GRACE};
use super::phase::{JobPhase, Problem};
use crate::preflight::names_lost_executor;

impl JobState {
    /// Takes a fact from the node of `partition`, told over its connection for `attempt`.
    pub fn message(
        &mut self,
        now: Instant,
        partition: u32,
        attempt: Attempt,
        message: NodeMessage,
        out: &mut Outbox,
    ) {
        if !self.nodes.contains_key(&partition) {
            return self.carrier_message(now, partition, attempt, message, out);
        }
        if attempt < self.attempts.present {
            self.step(partition, |node| (node.heard_from_the_past(now), ()));
            return self.message_of_the_past(partition, attempt, &message, out);
        }
        self.step(partition, |node| (node.heard(now), ()));
        self.seats.heard(partition);
        if self.is_lost(partition)
            && matches!(message, NodeMessage::Ping | NodeMessage::Done { .. })
            && let Some(order) = self.given_up()
        {
            return out.send(partition, order);
        }
        match message {
            NodeMessage::Ping => self.ping(partition, out),
            // It goes to who asked for it, and says nothing about the job.
            NodeMessage::Piece { .. } => {}
            // Who knows the time has told of it.
            NodeMessage::Notice(_) => {}
            NodeMessage::Frozen { number, asked } => self.frozen(partition, number, asked),
            NodeMessage::Noticed { number, late } => self.noticed(now, partition, number, late, out),
            // A node serves what is on its host anyway.
            NodeMessage::Carries(_) => {}
            NodeMessage::Join(join) => self.join(now, partition, join, out),
            NodeMessage::Saved { step } => self.saved(now, step, out),
            NodeMessage::RankStarted { rank, pid, age_us } => {
                if self.ranks.start(rank, partition) {
                    self.counts.started(attempt);
                    let text = format!("rank {rank} runs as process {pid} of partition {partition}");
                    self.reason(Level::Debug, text);
                    self.point(now, age_us, Point::RankStarted(rank));
                }
            }
            NodeMessage::Phase { rank, name, nth, age_us } => {
                if self.ranks.phase(rank, nth) {
                    self.point(now, age_us, Point::RankPhase(rank, name));
                }
            }
            NodeMessage::Activity { ranks } => self.activity(now, ranks, out),
            NodeMessage::Reports { rank, first, reports } => {
                if self.knows_rank(rank) && self.job.every_report.is_of(rank) {
                    self.news.reports.extend(self.reports.take(rank, first, reports));
                }
            }
            NodeMessage::Stacks { request, ranks } => self.stacks_told(now, partition, request, ranks, out),
            NodeMessage::RankEnded { exit } => self.rank_ended(now, *exit, out),
            NodeMessage::Done { problem, interrupted, .. }
                if self.leaves_early(partition, problem.is_some(), interrupted.is_some()) =>
            {
                // Spark has ended its task, mostly because of another's end, and may start all of them again.
                let why = interrupted.or(problem).unwrap_or_default();
                self.reason(Level::Info, format!("the task of partition {partition} has left: {why}"));
                self.step(partition, |node| (node.left(), ()));
                out.send(partition, HubMessage::Released);
            }
            NodeMessage::Done { problem, interrupted, .. } => {
                let may_stay = interrupted.is_none();
                self.blame_node(now, partition, problem, interrupted, out);
                self.node_done(now, partition, may_stay, out);
            }
        }
        self.conclude(now, out);
    }

    /// Whether a task goes without a loss for the others: Spark has ended it before it had its place, or they run
    /// without it.
    fn leaves_early(&self, partition: u32, has_problem: bool, is_interrupted: bool) -> bool {
        let is_unplaced = is_interrupted && !has_problem && self.waits_for_place(partition);
        is_unplaced || self.nodes.get(&partition).is_some_and(|node| self.is_outside(node))
    }

    fn ping(&self, partition: u32, out: &mut Outbox) {
        out.send(partition, HubMessage::Pong);
        let is_done = matches!(self.nodes.get(&partition), Some(Node::Held { .. } | Node::Done { .. }));
        // Either order may have gone with a connection.
        let waits = self.nodes.get(&partition).is_some_and(|node| self.is_newcomer(node));
        if let Some(reason) = self.phase.stop_reason().filter(|_| !is_done && !waits) {
            out.send(partition, HubMessage::Stop { reason: reason.to_string() });
        } else if self.may_stop_serving(partition) {
            out.send(partition, HubMessage::StopServing);
        }
        if matches!(self.phase, JobPhase::Running(_)) {
            self.repeat_notice(partition, out);
        }
    }

    /// Keeps a node that is done while its ranks may have to start again, unless its task ends; else lets it go.
    fn node_done(&mut self, now: Instant, partition: u32, may_stay: bool, out: &mut Outbox) {
        let holds = may_stay && (self.budget_left() || self.may_be_preempted() || self.may_resize());
        self.notices.gone(partition);
        self.step(partition, |node| (if holds { node } else { node.released() }.done(now, holds), ()));
        if !matches!(self.nodes.get(&partition), Some(Node::Held { .. })) {
            out.send(partition, HubMessage::Released);
        }
    }

    /// What a node that is done says against itself.
    fn blame_node(
        &mut self,
        now: Instant,
        partition: u32,
        problem: Option<String>,
        interrupted: Option<String>,
        out: &mut Outbox,
    ) {
        if let Some(problem) = problem {
            self.fail(now, self.of_node(partition, problem), out);
        }
        if let Some(why) = interrupted {
            let lost = Failure::without_rank(FailureKind::LostNode, why.clone());
            let failure = Failure { host: self.host(partition), ..lost };
            let problem = Problem { failure, lost_executor: names_lost_executor(&why) };
            self.stop_all(now, &why, out);
            if let Some(stopping) = self.phase.stopping_mut() {
                stopping.interrupted_at(now, problem);
            }
        }
    }

    /// A node could not do its part: start its ranks, or, once they ran, keep them.
    fn of_node(&self, partition: u32, problem: String) -> Failure {
        let kind = match self.ranks.any_ran_on(partition) {
            true => FailureKind::LostNode,
            false => FailureKind::Start,
        };
        Failure { host: self.host(partition), ..Failure::without_rank(kind, problem) }
    }

    fn rank_ended(&mut self, now: Instant, mut exit: RankExit, out: &mut Outbox) {
        // Ages become times since the hub opened.
        let (now_us, rank) = (self.since_open_us(now), exit.rank);
        exit.at_us = exit.at_us.saturating_add(now_us);
        exit.last_output_us = exit.last_output_us.map(|at| at.saturating_add(now_us));
        let age_us = u64::try_from(now_us.saturating_sub(exit.at_us)).unwrap_or(0);
        let failed = exit.failure();
        let by_itself = exit.failed_by_itself();
        self.notices.asked(exit.asked);
        let misses_blocks = exit.misses_blocks();
        let why = format!("rank {rank} {}", exit.state.describe());
        if !self.ranks.end(exit) {
            return;
        }
        self.counts.ended(failed.is_some());
        self.point(now, age_us, Point::RankEnded(rank));
        self.attempts.has_lost_blocks |= misses_blocks;
        self.ends_others(now, failed, by_itself, &why, out);
        self.stop_serving(out);
    }

    /// The control connection of a node broke.
    pub fn disconnected(&mut self, now: Instant, partition: u32) {
        self.seats.disconnected(partition);
        if self.step(partition, |node| (node.disconnected(now), ())).is_none() {
            self.carriers.disconnected(now, partition);
        }
    }

    /// The Spark stage that was submitted for `attempt` is over: well, or with this message.
    pub fn stage_ended(&mut self, now: Instant, attempt: Attempt, problem: Option<String>, out: &mut Outbox) {
        if attempt < self.attempts.of_stage {
            return;
        }
        self.stage_ended = Some(now);
        if let Some(problem) = problem {
            let lost_executor = names_lost_executor(&problem);
            if lost_executor {
                self.lose_broken_nodes(now, &problem);
            }
            let kind = match self.ranks.any_ran() || lost_executor {
                true => FailureKind::LostNode,
                false => FailureKind::Start,
            };
            let failure = Failure::without_rank(kind, problem);
            self.fail(now, Problem { failure, lost_executor }, out);
        }
        self.conclude(now, out);
    }

    /// The caller asks for the end.
    pub fn cancel(&mut self, now: Instant, reason: &str, out: &mut Outbox) {
        let may_go_on = self.restarts() < self.job.policy.max_restarts || self.preemption_budget_left();
        if (may_go_on || self.may_resize())
            && let Some(stopping) = self.phase.stopping_mut()
        {
            stopping.forget_retryable();
        }
        let message = format!("the job was cancelled: {reason}");
        self.fail(now, Failure::without_rank(FailureKind::Cancelled, message), out);
        self.conclude(now, out);
    }

    /// The driver can't keep the result of a rank.
    pub fn result_lost(&mut self, now: Instant, rank: u32, why: &str, out: &mut Outbox) {
        let message = format!("rank {rank} succeeded, but the driver can't keep its result: {why}");
        self.fail(now, Failure::without_rank(FailureKind::Exception, message), out);
        self.conclude(now, out);
    }

    /// The caller wants to know what the ranks do; [`JobState::take_stacks`] has it soon.
    pub fn ask_for_stacks(&mut self, now: Instant, out: &mut Outbox) {
        if !self.stacks.is_open() {
            self.ask(now, None, out);
        }
    }

    /// Time passes. Returns when it matters next.
    pub fn tick(&mut self, now: Instant, out: &mut Outbox) -> Option<Instant> {
        if self.outcome().is_some() {
            return None;
        }
        self.end_cooldowns(now);
        self.join_deadline(now, out);
        self.lose_silent_nodes(now, out);
        self.lose_silent_carriers(now, out);
        self.look_for_stragglers(now);
        self.conclude_stacks(now, out);
        self.conclude(now, out);
        self.announce_who_takes_time(now);
        self.next_deadline(now)
    }

    fn next_deadline(&self, now: Instant) -> Option<Instant> {
        if self.outcome().is_some() {
            return None;
        }
        let stopping = self.phase.stopping();
        let interrupted = stopping.and_then(|stopping| stopping.interrupted());
        let others = [
            self.stragglers.due(),
            self.stacks.until(),
            stopping.map(|stopping| stopping.until),
            stopping.map(|stopping| stopping.ranks_until),
            stopping.and_then(|stopping| stopping.unclear_since).map(|since| since + RECONNECT_GRACE),
            stopping.filter(|stopping| !stopping.told).map(|stopping| stopping.since + TELL_AFTER),
            self.stage_ended.map(|at| at + STAGE_GRACE),
            interrupted.map(|(at, _)| *at + STAGE_GRACE),
        ];
        let timeout = self.job.policy.node_timeout;
        let losses = self.nodes.values().filter_map(|node| node.loss(timeout));
        let losses = losses.chain(self.carriers.losses(timeout).map(|(_, loss)| loss));
        let all = self
            .join_due(now)
            .into_iter()
            .chain(self.cooldown_due())
            .chain(others.into_iter().flatten())
            .chain(self.notices.due());
        all.chain(losses.map(|loss| loss.due)).filter(|at| *at > now).min()
    }
}
