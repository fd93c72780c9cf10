//! What has happened to a job, as far as a snapshot tells it, and the snapshot.
//!
//! News cost little as they come. What is asked of every rank is asked when somebody wants a snapshot.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use phalanx_types::Job;
use phalanx_types::run_snapshot::{FailureNote, MAX_COOLING, MAX_NOTICES, MAX_RANKS, RunSnapshot};

use super::newest_lines::NewestLines;
use super::restarts::Restarts;
use super::timeline::Timeline;
use crate::driver::state::{JobOutcome, JobState, Phase, Point, Restart, Restarted};
use crate::metric::Metric;

/// What has happened to a job.
#[derive(Debug)]
pub(in crate::driver) struct History {
    run: String,
    name: String,
    world_size: u32,
    opened: Instant,
    /// `opened` on the clock that people read.
    opened_at: f64,
    timeline: Timeline,
    restarts: Restarts,
    lines: NewestLines,
    /// The attempt whose ranks have reported.
    reported: bool,
    /// Lines and bytes that all ranks wrote.
    written: (u64, u64),
}

/// Seconds since 1970, for people: the differences of a job's times come from `Instant`.
#[expect(clippy::disallowed_methods, reason = "read once, when a job begins")]
pub(in crate::driver) fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

impl History {
    /// That of a job which begins now.
    pub(in crate::driver) fn new(job: &Job, opened: Instant) -> History {
        History {
            run: job.id.clone(),
            name: job.name.clone(),
            world_size: job.ranks,
            opened,
            opened_at: unix_time(),
            timeline: Timeline::new(job.ranks),
            restarts: Restarts::default(),
            lines: NewestLines::default(),
            reported: false,
            written: (0, 0),
        }
    }

    /// A point of the job's life.
    pub(in crate::driver) fn phase(&mut self, phase: &Phase) {
        if let Point::AllJoined(ranks) = phase.point {
            self.world_size = ranks;
            self.restarts.placed(phase.at, ranks);
        }
        self.timeline.point(phase);
    }

    /// A rank has reported.
    pub(in crate::driver) fn progress(&mut self) {
        self.reported = true;
    }

    /// Another attempt begins.
    pub(in crate::driver) fn restart(&mut self, now: Instant, restart: &Restart) {
        self.restarts.begin(self.since_open(now), restart);
        self.reported = false;
    }

    /// All its ranks run.
    pub(in crate::driver) fn restarted(&mut self, restarted: &Restarted) {
        self.restarts.end(restarted);
    }

    /// Something was shown.
    pub(in crate::driver) fn shown(&mut self, text: &str) {
        self.lines.take(text);
    }

    /// Ranks wrote so much more.
    pub(in crate::driver) fn wrote(&mut self, lines: usize, bytes: u64) {
        self.written = (self.written.0 + lines as u64, self.written.1 + bytes);
    }

    /// Looks how the job stands; after the points that belong to it. Ranks that are `mute` don't tell when their
    /// training code begins.
    pub(in crate::driver) fn look(&mut self, now: Instant, state: &JobState, mute: bool) {
        let at = self.since_open(now);
        if self.reported || mute && state.all_started() {
            self.timeline.trains(at);
        }
        if state.is_stopping() {
            self.timeline.stops(at);
        }
        if state.outcome().is_some() {
            self.timeline.ends(at);
        }
    }

    /// The job now.
    pub(in crate::driver) fn snapshot(&self, now: Instant, state: &JobState) -> RunSnapshot {
        let time = |at: Duration| self.opened_at + at.as_secs_f64();
        let ranks = state.listing(MAX_RANKS);
        let listed = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        let written = [(Metric::LogsLines, self.written.0), (Metric::LogsBytes, self.written.1)];
        let name = |metric: Metric| metric.declaration().0.to_owned();
        let counts = state.counts().into_iter().chain(written).chain(self.restarts.counts());
        RunSnapshot {
            state: state.run_state(),
            time: time(self.since_open(now)),
            started: self.opened_at,
            ended: self.timeline.over().map(time),
            attempt: state.attempt(),
            waits_for: state.waits_for_slots(),
            phases: self.timeline.spans(self.opened_at),
            restarts: self.restarts.newest(self.opened_at),
            sizes: self.restarts.sizes(self.opened_at),
            notices: state.going_hosts(MAX_NOTICES),
            cooling: state.cooling_hosts(now, MAX_COOLING, |at| time(self.since_open(at))),
            seats: state.seats_note(),
            ranks,
            ranks_left_out: self.world_size.saturating_sub(listed),
            slow: state.slow_ranks().take(MAX_RANKS).collect(),
            lines: self.lines.lines(),
            counts: counts.map(|(of, count)| (name(of), count)).collect(),
            failure: match state.outcome() {
                Some(JobOutcome::Failed(failure)) => Some(FailureNote::from(&**failure)),
                _ => None,
            },
            ..RunSnapshot::waiting(&self.run, &self.name, self.world_size, self.opened_at)
        }
    }

    fn since_open(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.opened)
    }
}
