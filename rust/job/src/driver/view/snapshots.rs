//! Snapshots of a job for whoever asks, however often, also when its hub is closed.
//!
//! - DRIVER-39 (rarely-made): however many ask, the hub makes a snapshot four times a second at most; in between they
//!   get the one before. The last one is made once, when the outcome is told, and stays.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::run_snapshot::{Stage, State};
use phalanx_types::{Job, NodeSpec, RankProgram, RunSnapshot};

use super::history::unix_time;
use super::losses::{Losses, Points};
use crate::driver::state::Progress;

/// How long a snapshot counts as new.
const FRESH: Duration = Duration::from_millis(250);
/// How long a hub is waited for.
pub(in crate::driver) const PATIENCE: Duration = Duration::from_secs(2);

/// The newest snapshot of a job, and its losses.
#[derive(Debug)]
pub struct Snapshots {
    kept: Mutex<Kept>,
    losses: Mutex<Losses>,
}

#[derive(Debug)]
struct Kept {
    stage: Option<Stage>,
    /// Whether the ranks are programs that tell nothing of themselves.
    is_mute: bool,
    snapshot: RunSnapshot,
    made: Option<Instant>,
    is_last: bool,
}

impl Snapshots {
    /// Those of a job that begins.
    pub fn of(job: &Job) -> Snapshots {
        let snapshot = RunSnapshot::waiting(&job.id, &job.name, job.ranks, unix_time());
        Snapshots {
            kept: Mutex::new(Kept { stage: None, is_mute: false, snapshot, made: None, is_last: false }),
            losses: Mutex::default(),
        }
    }

    /// Those of a job that was asked for so long ago and has no hub yet.
    pub fn without_hub(job: &Job, asked: Duration) -> Snapshots {
        let snapshots = Snapshots::of(job);
        snapshots.kept().snapshot.started -= asked.as_secs_f64();
        snapshots
    }

    /// The newest that was made, as JSON.
    pub fn newest(&self) -> String {
        let kept = self.kept();
        RunSnapshot { stage: kept.stage, losses: self.curves().lowest(), ..kept.snapshot.clone() }.to_json()
    }

    /// The losses by step of the lowest ranks that tell one, of few points each, by rank.
    pub fn losses(&self) -> BTreeMap<u32, Points> {
        self.curves().all()
    }

    /// A rank has reported.
    pub(in crate::driver) fn reported(&self, progress: &Progress) {
        self.curves().take(progress.rank, progress.step, &progress.values);
    }

    /// Whether the newest is new enough, or will stay the newest.
    pub(in crate::driver) fn is_fresh(&self) -> bool {
        let kept = self.kept();
        kept.is_last || kept.made.is_some_and(|made| made.elapsed() < FRESH)
    }

    /// Nodes are told this.
    pub(in crate::driver) fn told(&self, spec: &NodeSpec) {
        let mut kept = self.kept();
        kept.is_mute = matches!(spec.program, RankProgram::Command(_));
        kept.stage = Some(match &spec.program {
            _ if spec.job.cpus.local_mode => Stage::Local,
            RankProgram::Python(None) => Stage::Python,
            RankProgram::Python(Some(_)) | RankProgram::Command(_) => Stage::Jvm,
        });
    }

    /// Whether the ranks don't tell when their training code begins.
    pub(in crate::driver) fn is_mute(&self) -> bool {
        self.kept().is_mute
    }

    /// Keeps a snapshot; after the last one no other.
    pub(in crate::driver) fn keep(&self, snapshot: RunSnapshot, is_last: bool) {
        let mut kept = self.kept();
        if !kept.is_last {
            (kept.snapshot, kept.made, kept.is_last) = (snapshot, Some(Instant::now()), is_last);
        }
    }

    /// Keeps the snapshot of a job whose hub is closed before its outcome is known.
    pub(in crate::driver) fn keep_unfinished(&self, snapshot: RunSnapshot) {
        let ended = Some(snapshot.time);
        self.keep(RunSnapshot { state: State::Failed, ended, ..snapshot }, true);
    }

    fn curves(&self) -> MutexGuard<'_, Losses> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
