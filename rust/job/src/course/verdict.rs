//! What is said of a job that is over: which of several failures is the cause, and a line for each rank.

use std::time::Instant;

use phalanx_types::failure::{first_cause, report};
use phalanx_types::stacks::ranges;
use phalanx_types::{Failure, FailureKind, RankEnd, RankReport, RankState};

use super::{Course, Gathering};

impl Course {
    /// The stage is over and ranks are missing, but nobody said why.
    pub(super) fn unexplained(&self, now: Instant) -> Failure {
        let missing: Vec<u32> = self.ranks().filter(|rank| !self.ends.contains_key(rank)).collect();
        let message = match missing.is_empty() {
            true => "the Spark stage ended before every task had said that it was done".into(),
            false => {
                format!("the Spark stage ended, but nothing was heard of the end of {}", ranges(&missing))
            }
        };
        Failure {
            ranks: self.reports_at(self.since_open_us(now)),
            ..Failure::without_rank(FailureKind::LostNode, message)
        }
    }

    /// The failure's cause: a rank's own failure before a problem of the job, since the problem is mostly its echo;
    /// but a cancel or a lost node that came first stays what it is.
    pub(super) fn cause(&self, now: Instant) -> Failure {
        let ends: Vec<RankEnd> = self.ends.values().cloned().collect();
        let cancelled = self.problem.as_ref().filter(|p| p.kind == FailureKind::Cancelled);
        let problem = self.problem.as_ref().or(self.interrupted.as_ref().map(|(_, failure)| failure));
        let mut failure = match (cancelled, first_cause(&ends), problem) {
            (Some(cancelled), _, _) => cancelled.clone(),
            (None, Some((end, why)), _) => {
                log::debug!("job {}: rank {} is the cause, since {why}", self.job.id, end.rank);
                let mut failure = Failure::of_rank(end);
                if end.is_echo() {
                    failure.message += &self.left_alone_by();
                }
                failure
            }
            (None, None, Some(problem)) => problem.clone(),
            (None, None, None) => self.unexplained(now),
        };
        let at_us = failure
            .rank
            .and_then(|rank| self.ends.get(&rank))
            .map_or(self.since_open_us(now), |end| end.at_us);
        failure.ranks = self.reports_at(at_us);
        if let Some(end) = failure.rank.and_then(|rank| self.ends.get(&rank))
            && failure.log_path.is_empty()
        {
            // A hang is known before its rank's end.
            (failure.log_path, failure.last_lines) = (end.log_path.clone(), end.last_lines.clone());
        }
        failure
    }

    /// Why a rank may miss its peers although none of them failed.
    pub(super) fn left_alone_by(&self) -> String {
        let well = self.ends.values().filter(|end| end.state == RankState::Finished);
        let well: Vec<u32> = well.map(|end| end.rank).collect();
        if well.is_empty() {
            return String::new();
        }
        let who = ranges(&well);
        format!("; {who} ended well before, so perhaps not all ranks make the same collective calls")
    }

    pub(super) fn reports_at(&self, at_us: i64) -> Vec<RankReport> {
        let doing = |rank: &u32| self.activity.get(rank).map(|told| told.doing.clone()).unwrap_or_default();
        (0..self.job.ranks)
            .map(|rank| match self.ends.get(&rank) {
                Some(end) => RankReport { doing: doing(&rank), ..report(end, at_us) },
                None => {
                    let state = if self.running.contains(&rank) {
                        RankState::Running.describe()
                    } else if self.gathering == Gathering::ThroughSpark {
                        "nothing was heard of it: its task can't connect to the driver".into()
                    } else {
                        RankState::Waiting.describe()
                    };
                    RankReport {
                        rank,
                        host: self.host_of(rank),
                        state,
                        idle_seconds: None,
                        doing: doing(&rank),
                    }
                }
            })
            .collect()
    }
}
