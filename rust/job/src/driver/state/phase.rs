//! The phases of a job's attempt: the data of each, and which leads to which.
//!
//! ```text
//! Joining --> Running --> Stopping --> Over
//!    |           '----------------------^      every rank ended well
//!    '--------------------^                    something went wrong before all had their places
//! ```
//!
//! Two things exist only while the ranks are being ended: a failure that is not a rank's, and a task that Spark ended.
//! Either begins the ending, and the earliest counts. A restart begins with Joining again.

use std::time::{Duration, Instant};

use phalanx_types::{Failure, FailureKind, Placement, RankOutcome};

use super::joining::JoinClock;

/// How long nodes may take beyond the grace period to report the end of their ranks.
const STOP_MARGIN: Duration = Duration::from_secs(15);
/// How long guards may take beyond the grace period to end ranks.
const GUARD_MARGIN: Duration = Duration::from_secs(2);

/// How a job ended.
#[derive(Debug, Clone, PartialEq)]
pub enum JobOutcome {
    /// Every rank ended well; each one's line, by rank.
    Finished(Vec<RankOutcome>),
    /// Something went wrong.
    Failed(Box<Failure>),
}

/// The phases of an attempt.
#[derive(Debug)]
pub(super) enum JobPhase {
    /// Tasks join.
    Joining(Joining),
    /// All tasks have their places: ranks start, run and end.
    Running(Placement),
    /// The ranks are being ended.
    Stopping(Box<Stopping>),
    /// The outcome is known.
    Over(Over),
}

#[derive(Debug)]
pub(super) struct Joining {
    pub(super) clock: JoinClock,
    /// Whether a task has joined.
    pub(super) has_begun: bool,
    /// Whether the log says that the stage waits for slots.
    pub(super) told: bool,
    /// When a task joined last.
    pub(super) last_join: Option<Instant>,
    /// How long an elastic job waits from then on for another, once it has enough.
    pub(super) patience: Duration,
}

#[derive(Debug)]
pub(super) struct Stopping {
    pub(super) since: Instant,
    /// When nothing is left of ranks any more, whether or not their nodes say so: their guards see to it.
    pub(super) ranks_until: Instant,
    /// Whether the caller was told which ranks take their time.
    pub(super) told: bool,
    /// When nodes that haven't said that their ranks have ended are not waited for any more.
    pub(super) until: Instant,
    /// Since when another attempt only waits for nodes of which it isn't clear whether they are there.
    pub(super) unclear_since: Option<Instant>,
    /// Why, for the nodes' logs.
    pub(super) reason: String,
    /// That there are more tasks, where the ranks are only ended to start again with them.
    pub(super) grows: Option<String>,
    /// Whether all tasks had their places.
    placed: bool,
    /// A failure that is no rank's: the earliest counts.
    problem: Option<Problem>,
    /// Spark ended a node's task at this time: the stage knows why, and this is said only where it doesn't tell.
    interrupted: Option<(Instant, Problem)>,
}

/// A failure that is no rank's.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) failure: Failure,
    /// Whether Spark says that it lost an executor.
    pub(super) lost_executor: bool,
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        Problem { failure, lost_executor: false }
    }
}

#[derive(Debug)]
pub(super) struct Over {
    pub(super) outcome: JobOutcome,
    /// What a node is told that doesn't know it yet.
    pub(super) reason: String,
}

impl JobPhase {
    /// An attempt begins. An elastic job waits so long for more tasks.
    pub(super) fn joining(now: Instant, patience: Duration) -> JobPhase {
        let clock = JoinClock::new(now);
        JobPhase::Joining(Joining { clock, has_begun: false, told: false, last_join: None, patience })
    }

    /// The ranks are to be ended, within `grace`. Whether that is news.
    pub(super) fn stop(&mut self, now: Instant, grace: Duration, reason: &str) -> bool {
        let placed = match self {
            JobPhase::Joining(_) => false,
            JobPhase::Running(_) => true,
            JobPhase::Stopping(_) | JobPhase::Over(_) => return false,
        };
        *self = JobPhase::Stopping(Box::new(Stopping {
            since: now,
            ranks_until: now + grace + GUARD_MARGIN,
            told: false,
            until: now + grace + STOP_MARGIN,
            unclear_since: None,
            reason: reason.to_string(),
            grows: None,
            placed,
            problem: None,
            interrupted: None,
        }));
        true
    }

    pub(super) fn end(&mut self, outcome: JobOutcome) {
        let reason = match self {
            JobPhase::Stopping(stopping) => std::mem::take(&mut stopping.reason),
            _ => "the job is over".into(),
        };
        *self = JobPhase::Over(Over { outcome, reason });
    }

    pub(super) fn stopping(&self) -> Option<&Stopping> {
        match self {
            JobPhase::Stopping(stopping) => Some(stopping),
            _ => None,
        }
    }

    pub(super) fn stopping_mut(&mut self) -> Option<&mut Stopping> {
        match self {
            JobPhase::Stopping(stopping) => Some(stopping),
            _ => None,
        }
    }

    pub(super) fn outcome(&self) -> Option<&JobOutcome> {
        match self {
            JobPhase::Over(over) => Some(&over.outcome),
            _ => None,
        }
    }

    /// Why ranks that still run are to end, if they are.
    pub(super) fn stop_reason(&self) -> Option<&str> {
        match self {
            JobPhase::Joining(_) | JobPhase::Running(_) => None,
            JobPhase::Stopping(stopping) => Some(&stopping.reason),
            JobPhase::Over(over) => Some(&over.reason),
        }
    }
}

impl Stopping {
    /// Remembers a failure that is no rank's; the earliest counts.
    pub(super) fn blame(&mut self, problem: Problem) {
        self.problem.get_or_insert(problem);
    }

    /// The caller's word counts more than what would have been tried again.
    pub(super) fn forget_retryable(&mut self) {
        self.problem.take_if(|problem| problem.failure.kind != FailureKind::Cancelled);
    }

    pub(super) fn interrupted_at(&mut self, now: Instant, problem: Problem) {
        self.interrupted.get_or_insert((now, problem));
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.problem.as_ref().is_some_and(|problem| problem.failure.kind == FailureKind::Cancelled)
    }

    pub(super) fn problem(&self) -> Option<&Problem> {
        self.problem.as_ref()
    }

    pub(super) fn interrupted(&self) -> Option<&(Instant, Problem)> {
        self.interrupted.as_ref()
    }

    /// Whether all tasks had their places, so that they have stayed unless they were lost.
    pub(super) fn had_places(&self) -> bool {
        self.placed
    }
}
