//! The state of a job, and the few steps that every event is made of.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Attempt, Failure, FailureKind, Generation, Job};

use super::carriers::Carriers;
use super::joining::{Sizes, StageLook};
use super::news::{
    HostCarried, HostsPlaced, News, Phase, Point, Progress, RankReports, Reason, Restart, Restarted,
};
use super::node::Node;
use super::notices::Notices;
use super::phase::{JobOutcome, JobPhase, Problem};
use super::rank_counts::RankCounts;
use super::ranks::Ranks;
use super::reports::ReportNumbers;
use super::seating::{Cooldown, Seats};
use super::watching::{StackRequests, Stragglers};

/// How long reports may be on their way after the Spark stage ended.
pub(super) const STAGE_GRACE: Duration = Duration::from_secs(2);

/// Which attempt it is.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) present: Attempt,
    /// The one with which the present stage began.
    pub(super) of_stage: Attempt,
    /// How many of those before followed a notice.
    pub(super) preemptions: u32,
    /// How many began with other tasks, and after no failure that counts.
    pub(super) resizes: u32,
    /// Whether blocks went in the present one, with a carrier or as a rank tells: they are written again before the
    /// ranks start again.
    pub(super) has_lost_blocks: bool,
    /// Why the present one had to be.
    pub(super) cause: String,
}

/// The state of a job.
#[derive(Debug)]
pub struct JobState {
    pub(super) job: Job,
    pub(super) opened: Instant,
    pub(super) attempts: Attempts,
    /// What the ranks of the present attempt belong to.
    pub(super) generation: Generation,
    pub(super) phase: JobPhase,
    /// By partition.
    pub(super) nodes: BTreeMap<u32, Node>,
    pub(super) seats: Seats,
    pub(super) sizes: Sizes,
    pub(super) notices: Notices,
    pub(super) cooldown: Cooldown,
    /// How many tasks wait that have no seat.
    pub(super) spares: u32,
    /// What Spark showed last of the tasks.
    pub(super) last_look: Option<StageLook>,
    pub(super) carriers: Carriers,
    pub(super) ranks: Ranks,
    pub(super) reports: ReportNumbers,
    pub(super) counts: RankCounts,
    /// When the Spark stage ended, if it has.
    pub(super) stage_ended: Option<Instant>,
    pub(super) stacks: StackRequests,
    pub(super) stragglers: Stragglers,
    pub(super) news: News,
}

impl JobState {
    /// The beginning of `job`.
    pub fn new(job: Job, opened: Instant) -> JobState {
        JobState {
            opened,
            attempts: Attempts::default(),
            generation: Generation::first(),
            phase: JobPhase::joining(opened, job.policy.elastic.patience),
            nodes: (0..job.tasks).map(|partition| (partition, Node::default())).collect(),
            seats: Seats::default(),
            sizes: Sizes::default(),
            notices: Notices::default(),
            cooldown: Cooldown::default(),
            spares: 0,
            last_look: None,
            carriers: Carriers::default(),
            ranks: Ranks::new(job.ranks, job.policy.hang_timeout),
            reports: ReportNumbers::default(),
            counts: RankCounts::default(),
            stage_ended: None,
            stacks: StackRequests::default(),
            stragglers: Stragglers::default(),
            news: News::default(),
            job,
        }
    }

    /// How the job ended, once it has.
    pub fn outcome(&self) -> Option<&JobOutcome> {
        self.phase.outcome()
    }

    /// Whether `rank` is one whose result is wanted.
    pub fn knows_rank(&self, rank: u32) -> bool {
        self.ranks.get(rank).is_some()
    }

    /// How many ranks the present attempt has; while its tasks join, how many it could have.
    pub fn world_size(&self) -> u32 {
        self.ranks.count()
    }

    /// The present attempt, from 0.
    pub fn attempt(&self) -> Attempt {
        self.attempts.present
    }

    /// Whether a connection for `attempt` belongs to the stage that runs.
    pub fn admits(&self, attempt: Attempt) -> bool {
        (self.attempts.of_stage..=self.attempts.present).contains(&attempt)
    }

    /// The phases since the last call.
    pub fn take_phases(&mut self) -> Vec<Phase> {
        std::mem::take(&mut self.news.phases)
    }

    /// The restarts since the last call.
    pub fn take_restarts(&mut self) -> Vec<Restart> {
        std::mem::take(&mut self.news.restarts)
    }

    /// After which restarts all ranks have begun to run since the last call.
    pub fn take_restarted(&mut self) -> Vec<Restarted> {
        std::mem::take(&mut self.news.restarted)
    }

    /// Where ranks of a run with data sets were placed since the last call.
    pub fn take_placed(&mut self) -> Vec<HostsPlaced> {
        std::mem::take(&mut self.news.placed)
    }

    /// The hosts that have got a carrier since the last call.
    pub fn take_carried(&mut self) -> Vec<HostCarried> {
        std::mem::take(&mut self.news.carried)
    }

    /// Lines for the caller since the last call.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.news.notices)
    }

    /// Reports of ranks since the last call.
    pub fn take_progress(&mut self) -> Vec<Progress> {
        std::mem::take(&mut self.news.progress)
    }

    /// What ranks have reported since the last call, where the caller wants each.
    pub fn take_reports(&mut self) -> Vec<RankReports> {
        std::mem::take(&mut self.news.reports)
    }

    /// Stacks that have come since the last call, whoever asked for them: an answer to [`JobState::ask_for_stacks`].
    pub fn take_stacks(&mut self) -> Vec<Vec<RankStacks>> {
        std::mem::take(&mut self.news.stacks)
    }

    /// Why the state changed since the last call, for the log.
    pub fn take_reasons(&mut self) -> Vec<Reason> {
        std::mem::take(&mut self.news.reasons)
    }

    pub(super) fn reason(&mut self, level: log::Level, text: impl std::fmt::Display) {
        self.news.reasons.push(Reason { level, text: format!("job {}: {text}", self.job.id) });
    }

    /// Microseconds since the hub opened.
    pub(super) fn since_open_us(&self, now: Instant) -> i64 {
        i64::try_from(now.saturating_duration_since(self.opened).as_micros()).unwrap_or(i64::MAX)
    }

    /// Has a point of the timeline told.
    pub(super) fn point(&mut self, now: Instant, age_us: u64, point: Point) {
        let at = now.saturating_duration_since(self.opened).saturating_sub(Duration::from_micros(age_us));
        self.news.phases.push(Phase { point, at });
    }

    /// Takes the node of `partition` to its next phase.
    pub(super) fn step<R>(&mut self, partition: u32, to: impl FnOnce(Node) -> (Node, R)) -> Option<R> {
        let node = self.nodes.get_mut(&partition)?;
        let (next, result) = to(std::mem::take(node));
        *node = next;
        Some(result)
    }

    /// Takes all nodes to their next phase.
    pub(super) fn step_all(&mut self, to: impl Fn(Node) -> Node) {
        self.nodes.values_mut().for_each(|node| *node = to(std::mem::take(node)));
    }

    /// Whether the node of `partition` is given up.
    pub fn is_lost(&self, partition: u32) -> bool {
        self.nodes.get(&partition).is_some_and(Node::is_lost)
    }

    /// The node that has `rank`, if it has its place and its connection is there.
    pub fn node_that_runs(&self, rank: u32) -> Option<u32> {
        let partition = self.ranks.get(rank)?.on()?;
        self.nodes.get(&partition).is_some_and(Node::speaks).then_some(partition)
    }

    /// The host of the task of `partition`, for people; empty if not known.
    pub(super) fn host(&self, partition: u32) -> String {
        self.nodes.get(&partition).map(|node| node.host().to_string()).unwrap_or_default()
    }

    /// The host on which `rank` runs or ran.
    pub(super) fn host_of(&self, rank: u32) -> String {
        let on = self.ranks.get(rank).and_then(|rank| rank.on());
        on.map(|partition| self.host(partition)).unwrap_or_default()
    }

    /// Whether all nodes have said that their ranks have ended, or are lost. Of an elastic job only those count that
    /// have had their places.
    pub(super) fn all_over(&self) -> bool {
        let counts = |node: &&Node| match &self.phase {
            JobPhase::Running(_) => !self.job.is_elastic() || node.is_lost() || node.had_its_place(),
            JobPhase::Joining(_) | JobPhase::Stopping(_) | JobPhase::Over(_) => true,
        };
        self.nodes.values().filter(counts).all(Node::is_over)
    }

    /// The tasks that are not at the hub.
    pub(super) fn missing(&self) -> String {
        let missing: Vec<String> =
            self.nodes.iter().filter(|(_, node)| !node.is_known()).map(|(p, _)| p.to_string()).collect();
        match missing.len() {
            1 => format!("the task of partition {}", missing[0]),
            0..=20 => format!("the tasks of partitions {}", missing.join(", ")),
            n => format!("the tasks of partitions {} and {} more", missing[..20].join(", "), n - 20),
        }
    }

    /// How many tasks are at the hub.
    pub(super) fn known(&self) -> usize {
        self.nodes.values().filter(|node| node.is_known()).count()
    }

    /// How often the ranks have started again after a failure.
    pub(super) fn restarts(&self) -> u32 {
        self.attempts.present.restarts() - self.attempts.preemptions - self.attempts.resizes
    }

    /// Whether a failed attempt may be followed by another, so that nodes that are done wait.
    pub(super) fn budget_left(&self) -> bool {
        let cancelled = self.phase.stopping().is_some_and(|stopping| stopping.is_cancelled());
        self.outcome().is_none() && self.restarts() < self.job.policy.max_restarts && !cancelled
    }

    /// A failure that is no rank's ends the attempt.
    pub(super) fn fail(&mut self, now: Instant, problem: impl Into<Problem>, out: &mut Outbox) {
        let problem = problem.into();
        self.stop_all(now, &problem.failure.message, out);
        if let Some(stopping) = self.phase.stopping_mut() {
            stopping.blame(problem);
        }
    }

    /// The ranks are to be ended; nothing new if they are already.
    pub(super) fn stop_all(&mut self, now: Instant, reason: &str, out: &mut Outbox) {
        if !self.phase.stop(now, self.job.policy.grace, reason) {
            return;
        }
        for (partition, node) in &self.nodes {
            // One that comes later is told when it joins.
            if matches!(node, Node::Joined { .. } | Node::Placed { .. }) && !self.is_newcomer(node) {
                out.send(*partition, HubMessage::Stop { reason: reason.to_string() });
            }
        }
    }
}

/// The job could not be started.
pub(super) fn start(message: String) -> Failure {
    Failure::without_rank(FailureKind::Start, message)
}
