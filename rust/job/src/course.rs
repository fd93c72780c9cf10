//! How a job goes, as the driver sees it: a pure state machine over facts, time and the Spark stage's fate.
//!
//! No I/O and no clock: every method takes the time. COURSE-1: the job ends exactly once, and only well if every rank
//! ended well. COURSE-2: the first failure stops all nodes, and the cause is chosen when all of them have reported
//! (or are lost), not by who reported first. COURSE-3: every wait has an end: joining, stopping, a silent node, a
//! stage that ended without a word. What a failed attempt is followed by is in `restart`.

mod deadlines;
mod hang;
mod joining;
mod pace;
mod restart;
mod verdict;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage, NodeReport, RankActivity};
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Failure, FailureKind, Job, Join, RankEnd, RankReport, RankState};

pub use pace::Report;
pub use restart::Restart;

/// How long nodes may take beyond the grace period to report the end of their ranks.
const STOP_MARGIN: Duration = Duration::from_secs(15);
/// How long reports may be on their way after the Spark stage ended.
const STAGE_GRACE: Duration = Duration::from_secs(2);

/// How a job ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Every rank ended well; each one's line, by rank.
    Finished(Vec<RankReport>),
    /// Something went wrong.
    Failed(Box<Failure>),
}

/// A point in the job's life, for the table of phases.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// Its name.
    pub name: String,
    /// The rank; `None` for the job's own.
    pub rank: Option<u32>,
    /// Since the hub opened; negative never happens but for clock noise, which is cut to zero.
    pub at: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gathering {
    /// Tasks join the hub.
    AtHub,
    /// The tasks exchange their joins through Spark.
    ThroughSpark,
    /// Every task has its placement.
    Placed,
}

#[derive(Debug, Default)]
struct Node {
    join: Option<Join>,
    gone_since: Option<Instant>,
    heard: Option<Instant>,
    placed: bool,
    done: bool,
    /// Done, and waits for what comes next.
    held: bool,
    lost: bool,
}

#[derive(Debug)]
struct Stopping {
    until: Instant,
    reason: String,
}

/// The state of a job.
#[derive(Debug)]
pub struct Course {
    job: Job,
    opened: Instant,
    /// The present attempt, and the one with which the present stage began.
    attempt: u32,
    stage_attempt: u32,
    restarts: Vec<Restart>,
    /// Why the present attempt had to be.
    last_cause: String,
    gathering: Gathering,
    gathering_since: Instant,
    /// Whether nodes met through Spark, so that some may be without the hub.
    through_spark: bool,
    first_join: Option<Instant>,
    nodes: BTreeMap<u32, Node>,
    ranks_of: BTreeMap<u32, Vec<u32>>,
    running: BTreeSet<u32>,
    ends: BTreeMap<u32, RankEnd>,
    phases: Vec<Phase>,
    /// How many phases each rank has told.
    phases_of: BTreeMap<u32, u32>,
    /// What running ranks do, as far as was told before they are ended.
    activity: BTreeMap<u32, RankActivity>,
    pace: pace::Pace,
    asking: Option<hang::Asking>,
    requests: u32,
    told_stacks: Vec<Vec<RankStacks>>,
    /// A failure that is no rank's: the earliest counts.
    problem: Option<Failure>,
    /// Spark ended a node's task at this time: the stage knows why, and this is said only where it doesn't tell.
    interrupted: Option<(Instant, Failure)>,
    stopping: Option<Stopping>,
    stage_ended: Option<Instant>,
    outcome: Option<Outcome>,
}

impl Course {
    /// The beginning of `job`.
    pub fn new(job: Job, opened: Instant) -> Course {
        let nodes = (0..job.tasks).map(|partition| (partition, Node::default())).collect();
        Course {
            job,
            opened,
            attempt: 0,
            stage_attempt: 0,
            restarts: Vec::new(),
            last_cause: String::new(),
            gathering: Gathering::AtHub,
            gathering_since: opened,
            through_spark: false,
            first_join: None,
            nodes,
            ranks_of: BTreeMap::new(),
            running: BTreeSet::new(),
            ends: BTreeMap::new(),
            phases: Vec::new(),
            phases_of: BTreeMap::new(),
            activity: BTreeMap::new(),
            pace: pace::Pace::default(),
            asking: None,
            requests: 0,
            told_stacks: Vec::new(),
            problem: None,
            interrupted: None,
            stopping: None,
            stage_ended: None,
            outcome: None,
        }
    }

    /// How the job ended, once it has.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// The phases since the last call.
    pub fn take_phases(&mut self) -> Vec<Phase> {
        std::mem::take(&mut self.phases)
    }

    /// The job's ranks.
    pub fn ranks(&self) -> std::ops::Range<u32> {
        0..self.job.ranks
    }

    /// Whether `rank` is one whose result is wanted.
    pub fn knows_rank(&self, rank: u32) -> bool {
        rank < self.job.ranks
    }

    fn since_open(&self, now: Instant, age_us: u64) -> Duration {
        now.saturating_duration_since(self.opened).saturating_sub(Duration::from_micros(age_us))
    }

    fn since_open_us(&self, now: Instant) -> i64 {
        micros(now.saturating_duration_since(self.opened))
    }

    fn phase(&mut self, now: Instant, age_us: u64, rank: Option<u32>, name: &str) {
        let at = self.since_open(now, age_us);
        self.phases.push(Phase { name: name.to_string(), rank, at });
    }

    /// Takes a fact from the node of `partition`, told over its connection for `attempt`.
    pub fn message(
        &mut self,
        now: Instant,
        partition: u32,
        attempt: u32,
        message: NodeMessage,
        out: &mut Outbox,
    ) {
        let Some(node) = self.nodes.get_mut(&partition) else {
            log::warn!("job {}: a node of partition {partition}, which the job doesn't have", self.job.id);
            return;
        };
        node.heard = Some(now);
        if attempt < self.attempt {
            return self.message_of_the_past(partition, &message, out);
        }
        node.gone_since = None;
        match message {
            NodeMessage::Ping => {
                out.send(partition, HubMessage::Pong);
                if let Some(Stopping { reason, .. }) = self.stopping.as_ref().filter(|_| !node.done) {
                    // The order may have gone with a connection.
                    out.send(partition, HubMessage::Stop { reason: reason.clone() });
                }
            }
            NodeMessage::Join(join) => self.join(now, partition, join, out),
            NodeMessage::Placed(join) => {
                node.join = Some(join);
                node.placed = true;
                self.through_spark = true;
                self.warn_of_unwatched_ranks();
                self.all_placed(now);
            }
            NodeMessage::RankStarted { rank, pid, age_us } => {
                log::debug!(
                    "job {}: rank {rank} runs as process {pid} of partition {partition}",
                    self.job.id
                );
                let started = self.ranks_of.entry(partition).or_default();
                // MSG-1: the first copy counts; by the second one it may have ended.
                if !started.contains(&rank) {
                    started.push(rank);
                    self.running.insert(rank);
                    self.phase(now, age_us, Some(rank), "rank started");
                }
            }
            NodeMessage::Phase { rank, name, nth, age_us } => {
                let told = self.phases_of.entry(rank).or_default();
                if nth >= *told {
                    *told = nth + 1;
                    self.phase(now, age_us, Some(rank), &name);
                }
            }
            NodeMessage::Activity { ranks } => self.activity(now, ranks, out),
            NodeMessage::Stacks { request, ranks } => self.stacks(now, partition, request, ranks, out),
            NodeMessage::RankEnded { end } => self.rank_ended(now, *end, out),
            NodeMessage::Done { problem, interrupted, .. } => {
                self.node_done(now, partition, problem, interrupted, out);
                self.hold(partition, out);
            }
        }
        self.conclude(now, out);
    }

    /// Keeps a node that is done while its ranks may have to start again; else lets it go.
    fn hold(&mut self, partition: u32, out: &mut Outbox) {
        let holds = self.budget_left();
        match self.nodes.get_mut(&partition) {
            Some(node) if holds => node.held = true,
            _ => out.send(partition, HubMessage::Released),
        }
    }

    fn node_done(
        &mut self,
        now: Instant,
        partition: u32,
        problem: Option<String>,
        interrupted: Option<String>,
        out: &mut Outbox,
    ) {
        if let Some(node) = self.nodes.get_mut(&partition) {
            node.done = true;
        }
        if let Some(problem) = problem {
            self.fail(now, self.of_node(partition, problem), out);
        }
        if let Some(why) = interrupted {
            let failure = self.of_node(partition, why.clone());
            self.interrupted.get_or_insert((now, failure));
            self.stop_all(now, &why, out);
        }
    }

    fn host(&self, partition: u32) -> String {
        let join = self.nodes.get(&partition).and_then(|node| node.join.as_ref());
        join.map(|join| join.host.clone()).unwrap_or_default()
    }

    /// A node could not do its part: start its ranks, or, once they ran, keep them.
    fn of_node(&self, partition: u32, problem: String) -> Failure {
        let began = self.ranks_of.contains_key(&partition);
        let kind = if began { FailureKind::LostNode } else { FailureKind::Start };
        Failure { host: self.host(partition), ..Failure::without_rank(kind, problem) }
    }

    fn rank_ended(&mut self, now: Instant, mut end: RankEnd, out: &mut Outbox) {
        // Ages become times since the hub opened.
        let now_us = self.since_open_us(now);
        end.at_us += now_us;
        end.last_output_us = end.last_output_us.map(|at| at + now_us);
        if end.rank >= self.job.ranks || self.ends.contains_key(&end.rank) {
            return;
        }
        let age_us = u64::try_from(now_us - end.at_us).unwrap_or(0);
        self.phase(now, age_us, Some(end.rank), "rank ended");
        self.running.remove(&end.rank);
        let failed = end.failure().is_some();
        let why = format!("rank {} {}", end.rank, end.state.describe());
        self.ends.insert(end.rank, end);
        if failed {
            self.stop_all(now, &why, out);
        }
    }

    /// A node that couldn't reach the hub reports through Spark.
    pub fn node_report(&mut self, now: Instant, report: NodeReport, out: &mut Outbox) {
        if report.attempt != self.attempt {
            return;
        }
        self.through_spark = true;
        for end in report.ends {
            self.rank_ended(now, end, out);
        }
        if let Some(node) = self.nodes.get_mut(&report.partition) {
            node.placed = true;
        }
        self.node_done(now, report.partition, report.problem, report.interrupted, out);
        self.conclude(now, out);
    }

    /// The Spark stage that was submitted for `attempt` is over: well, or with this message.
    pub fn stage_ended(&mut self, now: Instant, attempt: u32, problem: Option<String>, out: &mut Outbox) {
        if attempt < self.stage_attempt {
            return;
        }
        self.stage_ended = Some(now);
        if let Some(problem) = problem {
            let kind = if self.ranks_of.is_empty() { FailureKind::Start } else { FailureKind::LostNode };
            self.fail(now, Failure::without_rank(kind, problem), out);
        }
        self.conclude(now, out);
    }

    /// The caller asks for the end.
    pub fn cancel(&mut self, now: Instant, reason: &str, out: &mut Outbox) {
        let message = format!("the job was cancelled: {reason}");
        self.problem.take_if(|problem| {
            problem.kind != FailureKind::Cancelled && self.attempt < self.job.policy.max_restarts
        });
        self.fail(now, Failure::without_rank(FailureKind::Cancelled, message), out);
        self.conclude(now, out);
    }

    /// The driver can't keep the result of a rank.
    pub fn result_lost(&mut self, now: Instant, rank: u32, why: &str, out: &mut Outbox) {
        let message = format!("rank {rank} ended well, but its result can't be kept by the driver: {why}");
        self.fail(now, Failure::without_rank(FailureKind::Exception, message), out);
        self.conclude(now, out);
    }

    fn fail(&mut self, now: Instant, failure: Failure, out: &mut Outbox) {
        let why = failure.message.clone();
        self.problem.get_or_insert(failure);
        self.stop_all(now, &why, out);
    }

    fn stop_all(&mut self, now: Instant, reason: &str, out: &mut Outbox) {
        if self.stopping.is_some() || self.outcome.is_some() {
            return;
        }
        let until = now + self.job.policy.grace + STOP_MARGIN;
        self.stopping = Some(Stopping { until, reason: reason.to_string() });
        for partition in self.nodes.keys() {
            out.send(*partition, HubMessage::Stop { reason: reason.to_string() });
        }
    }

    /// Whether Spark ended a task, no other cause is known, and the stage's own word on it may still come.
    fn stage_may_explain(&self, now: Instant) -> bool {
        let waits = self.interrupted.as_ref().is_some_and(|(at, _)| now < *at + STAGE_GRACE);
        waits && self.problem.is_none() && self.stage_ended.is_none() && !self.a_rank_failed()
    }

    fn a_rank_failed(&self) -> bool {
        self.ends.values().any(|end| end.failure().is_some())
    }

    /// Decides the outcome, or another attempt, when everything is known, or never will be.
    fn conclude(&mut self, now: Instant, out: &mut Outbox) {
        if self.outcome.is_some() {
            return;
        }
        let all_over = self.nodes.values().all(|node| node.done || node.lost);
        let finished = self.ends.len() == self.job.ranks as usize
            && self.ends.values().all(|end| end.state == RankState::Finished);
        if self.stopping.is_none() {
            if all_over && finished && self.problem.is_none() {
                self.release_all(out);
                self.outcome = Some(Outcome::Finished(self.reports_at(self.since_open_us(now))));
                self.phase(now, 0, None, "all ranks ended");
            } else if self.stage_ended.is_some_and(|at| now >= at + STAGE_GRACE) || all_over {
                self.failed(now, self.unexplained(now), out);
            }
            return;
        }
        // One that has its place may come back, until it counts as lost.
        let is_gone = |node: &Node| node.join.is_none() || (node.gone_since.is_some() && !node.placed);
        let nobody_left = self.nodes.values().all(|node| node.done || node.lost || is_gone(node));
        let stage_over = self.stage_ended.is_some_and(|at| now >= at + STAGE_GRACE);
        let too_late = self.stopping.as_ref().is_some_and(|s| now >= s.until);
        if self.stage_may_explain(now) && !too_late {
            return;
        }
        if all_over || nobody_left || stage_over || too_late {
            self.failed(now, self.cause(now), out);
        }
    }

    /// The attempt is over, and failed.
    fn failed(&mut self, now: Instant, failure: Failure, out: &mut Outbox) {
        if self.is_retryable(&failure) {
            return self.restart(now, &failure, out);
        }
        self.release_all(out);
        self.outcome = Some(Outcome::Failed(Box::new(Failure { restarts: self.attempt, ..failure })));
        self.phase(now, 0, None, "all ranks ended");
    }
}

fn start(message: String) -> Failure {
    Failure::without_rank(FailureKind::Start, message)
}

fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}
