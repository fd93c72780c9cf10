//! How far the job and its ranks have got: reports of steps, ranks that are slower than the others, the state in words.
//!
//! PACE-1: a slow rank is named once. Slow is a rank whose steps take [`SLOW_FACTOR`] times the median's, for
//! [`SLOW_FOR`] without a break. The median is the lower one, so of two ranks it is the faster one's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_types::message::RankActivity;

use super::{Course, Gathering};

/// How many times the median's time a slow rank takes for a step.
const SLOW_FACTOR: u64 = 2;
/// For how long, until it is named.
const SLOW_FOR: Duration = Duration::from_secs(30);

/// What a rank told by `phalanx.report`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The rank.
    pub rank: u32,
    /// Its step.
    pub step: u64,
    /// Everything that it told, as a JSON object.
    pub values: String,
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    reports: Vec<Report>,
    slow_since: BTreeMap<u32, Instant>,
    named: BTreeSet<u32>,
    notices: Vec<String>,
}

impl Course {
    pub(super) fn take_report(&mut self, told: &RankActivity) {
        let before = self.activity.get(&told.rank);
        if let Some(step) = told.step
            && before.is_none_or(|before| (before.step, &before.values) != (Some(step), &told.values))
        {
            self.pace.reports.push(Report { rank: told.rank, step, values: told.values.clone() });
        }
    }

    pub(super) fn look_for_stragglers(&mut self, now: Instant) {
        let running = self.running.iter().filter_map(|rank| self.activity.get(rank));
        let times: BTreeMap<u32, u64> = running.filter_map(|told| Some((told.rank, told.step_us?))).collect();
        let mut sorted: Vec<u64> = times.values().copied().collect();
        sorted.sort_unstable();
        let Some(median) = sorted.get(sorted.len().saturating_sub(1) / 2).copied() else { return };
        for (rank, time) in times {
            if time < median.saturating_mul(SLOW_FACTOR) || time == median {
                self.pace.slow_since.remove(&rank);
                continue;
            }
            let since = *self.pace.slow_since.entry(rank).or_insert(now);
            if now >= since + SLOW_FOR && self.pace.named.insert(rank) {
                let seconds = |us: u64| us as f64 / 1e6;
                self.announce(format!(
                    "[phalanx] rank {rank} ({}) is slow: {:.2} s a step, the median of the ranks is {:.2} s",
                    self.host_of(rank),
                    seconds(time),
                    seconds(median)
                ));
            }
        }
    }

    /// Has a line shown to the caller.
    pub(super) fn announce(&mut self, line: String) {
        self.pace.notices.push(line);
    }

    /// Lines for the caller since the last call.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.pace.notices)
    }

    /// Reports of ranks since the last call.
    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.pace.reports)
    }

    /// Where the job is, in words: `waiting for 3 of 8 tasks`, `starting ranks`, `training, step 120`, `over`.
    pub fn status(&self) -> String {
        if self.outcome.is_some() {
            return "over".into();
        }
        if self.stopping.is_some() {
            return "ending the ranks".into();
        }
        if self.gathering != Gathering::Placed && !self.met_through_spark() {
            let missing = self.nodes.values().filter(|node| node.join.is_none()).count();
            return format!("waiting for {missing} of {} tasks", self.job.tasks);
        }
        if self.running.len() + self.ends.len() < self.job.ranks as usize && !self.through_spark {
            return "starting ranks".into();
        }
        match self.activity.values().filter_map(|told| told.step).max() {
            Some(step) => format!("training, step {step}"),
            None => "training".into(),
        }
    }
}
