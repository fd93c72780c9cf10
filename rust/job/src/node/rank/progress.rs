//! What a rank is doing, as its node sees it: its output, the notes of its watchdog, and its process's state.
//!
//! - NODE-35 (progress): progress is output, Python that ran in the main thread, a phase, a report (a note, or
//!   another step in the rank's words), or a collective operation of the `phalanx` backend that began or ended. That a
//!   rank is alive is no progress.
//! - NODE-36 (never-waits): nothing here waits for a rank.

use std::time::Instant;

use phalanx_types::RankNote;

/// How far a rank is, from its notes.
#[derive(Debug)]
pub(crate) struct RankProgress {
    /// When it last made some.
    pub(crate) last: Instant,
    /// It has left its result, which stays so.
    pub(crate) returned: bool,
    pub(crate) doing: String,
    /// How many collective operations had begun and ended.
    operations: u64,
    /// The step in its words. What is told of it goes by its notes: there each step has its values.
    reported: Option<u64>,
    pub(crate) step: Option<u64>,
    pub(crate) total_steps: Option<u64>,
    pub(crate) step_us: Option<u64>,
    pub(crate) values: String,
    pub(crate) collectives: CollectiveShare,
}

/// Which share of its time a rank is in collective operations, as its beats tell.
#[derive(Debug, Default)]
pub(crate) struct CollectiveShare {
    /// When the last beat came, and for how long operations had run by then, in microseconds.
    beat: Option<(Instant, u64)>,
    /// In thousandths, over the last beats.
    pub(crate) permille: Option<u32>,
}

impl CollectiveShare {
    /// Takes a beat. What there is no operation of has no share.
    fn beat(&mut self, now: Instant, operations: u64, busy_us: u64) {
        let before = self.beat.replace((now, busy_us));
        let Some((at, before_us)) = before.filter(|_| operations > 0) else { return };
        let passed_us = u64::try_from(now.saturating_duration_since(at).as_micros()).unwrap_or(u64::MAX);
        if passed_us == 0 {
            return;
        }
        let share = busy_us.saturating_sub(before_us).saturating_mul(1000) / passed_us;
        let share = u32::try_from(share.min(1000)).unwrap_or(1000);
        // Half of it is the last beat's, a quarter the one's before, and so on.
        self.permille = Some(self.permille.map_or(share, |old| (old + share) / 2));
    }
}

impl RankProgress {
    pub(crate) fn new() -> RankProgress {
        RankProgress {
            last: Instant::now(),
            returned: false,
            doing: String::new(),
            operations: 0,
            reported: None,
            step: None,
            total_steps: None,
            step_us: None,
            values: String::new(),
            collectives: CollectiveShare::default(),
        }
    }

    /// The rank's process runs.
    pub(crate) fn started(&mut self) {
        self.last = Instant::now();
    }

    /// Takes the step that it has in its words.
    pub(crate) fn reported(&mut self, step: Option<u64>) {
        if std::mem::replace(&mut self.reported, step) != step {
            self.last = Instant::now();
        }
    }

    /// Takes what a note says of progress.
    pub(crate) fn take(&mut self, note: &RankNote) {
        let progress = match note {
            RankNote::Phase(_) | RankNote::Saved(_) => true,
            RankNote::Error(_) | RankNote::Cold(_) => false,
            RankNote::Returned(returned) => {
                self.returned |= returned;
                true
            }
            RankNote::Beat(beat) => {
                self.collectives.beat(Instant::now(), beat.operations, beat.collective_us);
                self.doing = beat.doing.chars().take(120).collect();
                let before = std::mem::replace(&mut self.operations, beat.operations);
                beat.ran || beat.operations != before
            }
            RankNote::Report(report) => {
                self.step = report.step.or(self.step);
                self.total_steps = report.total_steps.or(self.total_steps);
                self.step_us = report.step_us.or(self.step_us);
                let mut shown = report.earlier.clone();
                shown.extend(report.values.clone());
                self.values = serde_json::to_string(&shown).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_share_of_collectives_is_that_of_the_last_beats() {
        let (mut share, began) = (CollectiveShare::default(), Instant::now());
        let at = |seconds| began + Duration::from_secs(seconds);
        share.beat(at(0), 0, 0);
        share.beat(at(1), 0, 0);
        assert_eq!(share.permille, None, "none has begun");
        share.beat(at(2), 3, 500_000);
        assert_eq!(share.permille, Some(500));
        share.beat(at(3), 9, 1_400_000);
        assert_eq!(share.permille, Some(700));
        share.beat(at(3), 9, 9_400_000);
        share.beat(at(4), 9, 19_400_000);
        assert_eq!(share.permille, Some(850), "groups that run at once don't make it more than all");
        share.beat(at(5), 9, 0);
        assert_eq!(share.permille, Some(425), "a group that is gone takes its time along");
    }
}
