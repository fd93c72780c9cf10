//! What a snapshot says of a job: the run's state, what is counted, and a line for each rank.
//!
//! - DRIVER-22 (each-rank-once): ranks are listed by rank, each once, whatever is known of it.

use std::collections::BTreeMap;

use phalanx_types::run_snapshot::{MAX_LINE_BYTES, RankLine, SeatsNote, State};
use phalanx_types::text::cut;
use phalanx_types::{FailureKind, RankState};
use serde_json::{Map, Value};

use super::job_state::JobState;
use super::phase::{JobOutcome, JobPhase};
use super::rank_counts::RankCounts;
use super::ranks::Rank;
use crate::metric::Metric;

/// The value of a report that `phalanx.report` adds: which share of its time a rank waits for batches.
const DATA_SHARE: &str = "data";

/// Where a rank is: its partition, and which of the ranks there it is.
type Place = (u32, usize);

impl JobState {
    /// The run's state, as a snapshot has it.
    pub fn run_state(&self) -> State {
        let before = if self.attempts.present.is_first() { State::Waiting } else { State::Restarting };
        match &self.phase {
            JobPhase::Joining(_) => before,
            JobPhase::Running(_) if !self.ranks.all_started() => before,
            JobPhase::Running(_) | JobPhase::Stopping(_) => State::Running,
            JobPhase::Over(over) => match &over.outcome {
                JobOutcome::Finished(_) => State::Succeeded,
                JobOutcome::Failed(failure) if failure.kind == FailureKind::Cancelled => State::Cancelled,
                JobOutcome::Failed(_) => State::Failed,
            },
        }
    }

    /// How the seats of its tasks stand; `None` in local mode, which has none.
    pub fn seats_note(&self) -> Option<SeatsNote> {
        let taken = self.nodes.values().filter(|node| node.has_task()).count();
        let beside = u32::try_from(self.seats_beside()).unwrap_or(u32::MAX);
        let note = SeatsNote {
            of: self.job.tasks,
            taken: u32::try_from(taken).unwrap_or(u32::MAX),
            spares: self.spares,
            asked: self.job.tasks.saturating_add(beside),
            slots: self.last_look.map(|look| look.slots),
            free: self.last_look.map(|look| look.free),
        };
        (!self.job.cpus.local_mode).then_some(note)
    }

    /// So many tasks have come that have no seat, and wait.
    pub fn spares_wait(&mut self, count: usize) {
        self.spares = u32::try_from(count).unwrap_or(u32::MAX);
    }

    /// Whether the ranks are being ended.
    pub fn is_stopping(&self) -> bool {
        self.phase.stopping().is_some()
    }

    /// Whether every rank runs, or has ended.
    pub fn all_started(&self) -> bool {
        self.ranks.all_started()
    }

    /// The ranks that were named as slow, and still are.
    pub fn slow_ranks(&self) -> impl Iterator<Item = u32> {
        self.stragglers.slow()
    }

    /// What is counted of the ranks' processes, of all attempts.
    pub fn counts(&self) -> [(Metric, u64); 4] {
        let RankCounts { started, restarted, failed } = self.counts;
        [
            (Metric::RanksRunning, u64::try_from(self.ranks.running_count()).unwrap_or(u64::MAX)),
            (Metric::RanksStarted, started),
            (Metric::RanksFailed, failed),
            (Metric::RanksRestarted, restarted),
        ]
    }

    /// A line for each of the first `most` ranks.
    pub fn listing(&self, most: usize) -> Vec<RankLine> {
        let places = self.places();
        self.ranks.all().take(most).map(|(number, rank)| self.line(number, rank, &places)).collect()
    }

    /// Where the ranks are that have their places.
    fn places(&self) -> BTreeMap<u32, Place> {
        let mut places = BTreeMap::new();
        for partition in self.nodes.keys() {
            let mut ranks = self.ranks.of_node(*partition).to_vec();
            ranks.sort_unstable();
            places.extend(ranks.iter().enumerate().map(|(nth, rank)| (*rank, (*partition, nth))));
        }
        if let JobPhase::Running(placement) = &self.phase {
            for node in &placement.nodes {
                let ranks = node.ranks.iter().enumerate();
                places.extend(ranks.map(|(nth, place)| (place.rank, (node.partition, nth))));
            }
        }
        places
    }

    fn line(&self, number: u32, rank: &Rank, places: &BTreeMap<u32, Place>) -> RankLine {
        let node = places.get(&number).and_then(|(partition, nth)| Some((self.nodes.get(partition)?, *nth)));
        let join = node.and_then(|(node, nth)| Some((node.join()?, nth)));
        let gpus = join.map(|(join, nth)| match join.gpus.get(nth) {
            // One of each rank's, as long as the task has as many as ranks.
            Some(gpu) => vec![gpu.clone()],
            None => join.gpus.iter().take(1).cloned().collect(),
        });
        let host = node.map(|(node, _)| cut(node.host(), MAX_LINE_BYTES)).filter(|host| !host.is_empty());
        let state = match rank {
            Rank::NotStarted => RankState::Waiting.name(),
            Rank::Running { .. } => RankState::Running.name(),
            Rank::Ended { exit, .. } => exit.state.name(),
        };
        let told = rank.doing();
        let values: Map<String, Value> =
            told.and_then(|told| serde_json::from_str(&told.values).ok()).unwrap_or_default();
        let step_us = told.and_then(|told| told.step_us).filter(|us| *us > 0);
        RankLine {
            rank: number,
            host,
            partition: places.get(&number).map(|(partition, _)| *partition),
            executor: None,
            gpus: gpus.unwrap_or_default(),
            state: state.into(),
            step: told.and_then(|told| told.step),
            of: told.and_then(|told| told.total_steps),
            rate: step_us.map(|us| 1e6 / us as f64),
            collective_share: told
                .and_then(|told| told.collective_permille)
                .map(|permille| f64::from(permille.min(1000)) / 1000.0),
            data_share: values.get(DATA_SHARE).and_then(Value::as_f64),
            values,
        }
    }
}
