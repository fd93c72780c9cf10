//! What the caller is to be told of a job, and what goes into the log, until somebody takes it.

use std::borrow::Cow;
use std::time::Duration;

use phalanx_types::message::TimedReport;
use phalanx_types::run_snapshot::{RestartCost, RestartKind};
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Attempt, Generation};

/// A point in the job's life, for the table of phases.
#[derive(Debug, Clone, PartialEq)]
pub struct Phase {
    /// What it is.
    pub point: Point,
    /// Since the hub opened; negative never happens but for clock noise, which is cut to zero.
    pub at: Duration,
}

/// What a job gets to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Point {
    /// A task has joined.
    FirstJoin,
    /// All have, or enough, and have the places of so many ranks.
    AllJoined(u32),
    /// This attempt begins, after a failure.
    Restart(Attempt),
    /// The outcome is known.
    AllEnded,
    /// A rank runs.
    RankStarted(u32),
    /// A rank has got to what it, or the training code, calls so.
    RankPhase(u32, String),
    /// A rank's process has ended.
    RankEnded(u32),
}

impl Point {
    /// The rank; `None` for a point of the job's own.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Point::RankStarted(rank) | Point::RankPhase(rank, _) | Point::RankEnded(rank) => Some(*rank),
            Point::FirstJoin | Point::AllJoined(_) | Point::Restart(_) | Point::AllEnded => None,
        }
    }

    /// Its name, for people.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            Point::FirstJoin => "first join".into(),
            Point::AllJoined(_) => "all joined".into(),
            Point::Restart(attempt) => format!("restart {attempt}").into(),
            Point::AllEnded => "all ranks ended".into(),
            Point::RankStarted(_) => "rank started".into(),
            Point::RankPhase(_, name) => name.into(),
            Point::RankEnded(_) => "rank ended".into(),
        }
    }
}

/// Another attempt begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// Which one; never the first.
    pub attempt: Attempt,
    /// What its ranks belong to.
    pub generation: Generation,
    /// What it is for.
    pub kind: RestartKind,
    /// Whether the tasks go on; else the Spark stage has to be submitted again.
    pub in_place: bool,
    /// The rank that failed before it, if one did.
    pub rank: Option<u32>,
    /// The failure before it, in a sentence.
    pub cause: String,
    /// What is said of it to the caller.
    pub line: String,
}

/// All ranks run again after a restart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Restarted {
    /// The present attempt; never the first.
    pub attempt: Attempt,
    /// What it was for.
    pub kind: RestartKind,
    /// What it has cost, with all attempts before it whose ranks did not all run.
    pub cost: RestartCost,
}

/// What the caller is to do with the seat of a partition, in a gang of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeatChange {
    /// Submit it once more, beside those whose tasks wait.
    Wanted {
        /// The attempt for which the gang was submitted to which it belongs.
        attempt: Attempt,
        /// The partition.
        partition: u32,
    },
    /// One of its jobs has it: end the others.
    Taken {
        /// As of one that is wanted.
        attempt: Attempt,
        /// The partition.
        partition: u32,
        /// The Spark stage of that job.
        stage: u32,
    },
}

/// The ranks of a run with data sets have their places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsPlaced {
    /// The attempt.
    pub attempt: Attempt,
    /// The names of the hosts that have nodes, as `uname -n` tells them; each once.
    pub hosts: Vec<String>,
}

/// A carrier serves the blocks of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostCarried {
    /// The attempt.
    pub attempt: Attempt,
    /// The host's name, as `uname -n` tells it.
    pub host: String,
}

/// What a rank told by `phalanx.report`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The rank.
    pub rank: u32,
    /// Its step.
    pub step: u64,
    /// Everything that it told, as a JSON object.
    pub values: String,
}

/// What a rank has reported, where the caller wants each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankReports {
    /// The rank.
    pub rank: u32,
    /// How many of its reports were left out on their way, before the last of these.
    pub left_out: u64,
    /// They, in their order.
    pub reports: Vec<TimedReport>,
}

/// Why the state changed, for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// How much it matters.
    pub level: log::Level,
    /// The sentence.
    pub text: String,
}

#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) phases: Vec<Phase>,
    pub(super) restarts: Vec<Restart>,
    pub(super) restarted: Vec<Restarted>,
    pub(super) placed: Vec<HostsPlaced>,
    pub(super) carried: Vec<HostCarried>,
    pub(super) seats: Vec<SeatChange>,
    pub(super) progress: Vec<Progress>,
    pub(super) reports: Vec<RankReports>,
    /// Lines for the caller.
    pub(super) notices: Vec<String>,
    pub(super) stacks: Vec<Vec<RankStacks>>,
    pub(super) reasons: Vec<Reason>,
}
