//! What a rank is doing, as its node sees it: its output, the notes of its watchdog, and its process's state.
//!
//! - ACTIVITY-1 (progress): progress is output, Python that ran in the main thread, a phase, a report, or a collective
//!   operation of the `phalanx` backend that began or ended. That a rank is alive is no progress.
//! - ACTIVITY-2 (never-waits): nothing here waits for a rank.

use std::time::Instant;

use phalanx_types::RankNote;

/// How far a rank is, from its notes.
#[derive(Debug)]
pub(crate) struct RankProgress {
    /// When it last made some.
    pub(crate) last: Instant,
    pub(crate) doing: String,
    /// How many collective operations had begun and ended.
    operations: u64,
    pub(crate) step: Option<u64>,
    pub(crate) total_steps: Option<u64>,
    pub(crate) step_us: Option<u64>,
    pub(crate) values: String,
}

impl RankProgress {
    pub(crate) fn new() -> RankProgress {
        RankProgress {
            last: Instant::now(),
            doing: String::new(),
            operations: 0,
            step: None,
            total_steps: None,
            step_us: None,
            values: String::new(),
        }
    }

    /// The rank's process runs.
    pub(crate) fn started(&mut self) {
        self.last = Instant::now();
    }

    /// Takes what a note says of progress.
    pub(crate) fn take(&mut self, note: &RankNote) {
        let progress = match note {
            RankNote::Phase(_) => true,
            RankNote::Error(_) | RankNote::Cold(_) => false,
            RankNote::Beat(beat) => {
                self.doing = beat.doing.chars().take(120).collect();
                let before = std::mem::replace(&mut self.operations, beat.operations);
                beat.ran || beat.operations != before
            }
            RankNote::Report(report) => {
                self.step = report.step.or(self.step);
                self.total_steps = report.total_steps.or(self.total_steps);
                self.step_us = report.step_us.or(self.step_us);
                self.values = serde_json::to_string(&report.values).unwrap_or_default();
                true
            }
        };
        if progress {
            self.last = Instant::now();
        }
    }
}

/// Whether a process is stopped; false for one that is gone.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'T' | b't'))
}
