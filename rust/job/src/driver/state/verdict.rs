//! What is said of an attempt that is over: which of several failures is the cause, and one line for each rank.

use std::time::Instant;

use phalanx_types::rank_exit::first_cause;
use phalanx_types::stacks::ranges;
use phalanx_types::{Failure, FailureKind, RankOutcome, RankState};

use super::job_state::JobState;
use super::phase::{Problem, Stopping};
use super::ranks::Rank;

impl JobState {
    /// The stage is over and ranks are missing, but nobody said why.
    pub(super) fn unexplained(&self, now: Instant) -> Failure {
        let missing = self.ranks.missing();
        let message = match missing.is_empty() {
            true => "the Spark stage ended before every task had reported that it was done".into(),
            false => {
                format!("the Spark stage ended, but the driver did not hear how {} ended", ranges(&missing))
            }
        };
        Failure {
            ranks: self.outcomes_at(self.since_open_us(now)),
            ..Failure::without_rank(FailureKind::LostNode, message)
        }
    }

    /// The failure's cause, and why it is that: a rank's own failure before a problem of the job, since the problem is
    /// mostly its echo; but a cancel that came first stays what it is, and a lost executor, or a rank that is ended
    /// since all hang, is what the others miss.
    pub(super) fn cause(&self, now: Instant, stopping: &Stopping) -> (Failure, &'static str) {
        let problem = stopping.problem().or(stopping.interrupted().map(|(_, problem)| problem));
        let (mut failure, why) = match (first_cause(self.ranks.exits()), problem) {
            (_, Some(cancelled)) if stopping.is_cancelled() => {
                (cancelled.failure.clone(), "the caller asked for the end")
            }
            (Some((exit, _)), Some(missed))
                if exit.is_echo() && (missed.failure.kind == FailureKind::Hang || missed.lost_executor) =>
            {
                (missed.failure.clone(), "ranks missed it")
            }
            (Some((exit, why)), problem) => {
                let mut failure = Failure::of_rank(exit);
                if exit.is_echo() {
                    failure.message += &self.left_alone_by();
                }
                // A rank that was cut off by it says so itself.
                if let Some(Problem { failure: said, lost_executor: true }) = problem
                    && exit.state == RankState::Lost
                    && exit.message != said.message
                {
                    failure.message += &format!("; {}", said.message);
                }
                (failure, why)
            }
            (None, Some(problem)) => (self.with_lost_rank(problem), "no rank failed"),
            (None, None) => (self.unexplained(now), "no reason was reported"),
        };
        let exit = failure.rank.and_then(|rank| self.ranks.get(rank)).and_then(Rank::exit);
        failure.ranks = self.outcomes_at(exit.map_or(self.since_open_us(now), |exit| exit.at_us));
        if let Some(exit) = exit
            && failure.log_path.is_empty()
        {
            // A hang is known before its rank's end.
            (failure.log_path, failure.last_lines) = (exit.log_path.clone(), exit.last_lines.clone());
        }
        (failure, why)
    }

    /// A problem of the job. Where Spark lost an executor, it names a rank of a node that is gone, also one that the
    /// executor ended itself, as it was told to go.
    fn with_lost_rank(&self, problem: &Problem) -> Failure {
        let Problem { failure, lost_executor } = problem;
        let finished = self.ranks.finished();
        let gone = self.nodes.iter().filter(|(_, node)| node.is_gone());
        let mut lost = gone.flat_map(|(partition, _)| self.ranks.of_node(*partition));
        match lost.find(|rank| !finished.contains(rank)) {
            Some(rank) if *lost_executor => {
                let host = self.host_of(*rank);
                let message = format!("rank {rank} ({host}) is lost with its task: {}", failure.message);
                Failure { rank: Some(*rank), host, message, ..failure.clone() }
            }
            _ => failure.clone(),
        }
    }

    /// Why a rank may miss its peers although none of them failed.
    pub(super) fn left_alone_by(&self) -> String {
        let well = self.ranks.finished();
        if well.is_empty() {
            return String::new();
        }
        let who = ranges(&well);
        format!("; {who} had already succeeded, so perhaps not all ranks make the same collective calls")
    }

    /// Each rank's line, for a job that ended or failed at this time.
    pub(super) fn outcomes_at(&self, at_us: i64) -> Vec<RankOutcome> {
        let lines = self.ranks.all().map(|(number, rank)| {
            let line = match rank.exit() {
                Some(exit) => RankOutcome::of(exit, at_us),
                None => RankOutcome {
                    rank: number,
                    host: self.host_of(number),
                    state: match rank {
                        Rank::NotStarted => RankState::Waiting,
                        Rank::Running { .. } | Rank::Ended { .. } => RankState::Running,
                    },
                    raised: String::new(),
                    idle_seconds: None,
                    doing: String::new(),
                },
            };
            let doing = rank.doing().map(|told| told.doing.clone()).unwrap_or_default();
            RankOutcome { doing, ..line }
        });
        lines.collect()
    }
}
