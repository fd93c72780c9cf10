//! How a node tells what happened, as changes of metrics.
//!
//! - NODE-22 (told-soon): what happens to ranks is told as it happens, within [`INTERRUPT_EVERY`]. Their output is
//!   told once a second, and all of it at the end.

use std::time::{Duration, Instant};

use phalanx_types::Attempt;

use crate::metric::{Metric, MetricChange};
use crate::node::process::INTERRUPT_EVERY;

/// How often a node tells how much its ranks wrote.
const TELL_OUTPUT_EVERY: Duration = Duration::from_secs(1);

/// What a node has counted and not reported yet.
pub(crate) struct Metrics {
    began: Instant,
    pending: Vec<MetricChange>,
    /// Lines and bytes that were reported.
    reported: (u64, u64),
    look_at: Instant,
    tell_output_at: Instant,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let now = Instant::now();
        Metrics { began: now, pending: Vec::new(), reported: (0, 0), look_at: now, tell_output_at: now }
    }

    /// The node, which began an attempt at `began`, knows its place.
    pub(crate) fn joined(&mut self, began: Instant) {
        self.began = began;
        self.pending.push((Metric::JoinLatency, millis(began.elapsed())));
    }

    pub(crate) fn rank_started(&mut self, at: Instant, attempt: Attempt) {
        if !attempt.is_first() {
            self.pending.push((Metric::RanksRestarted, 1));
        }
        let latency = millis(at.saturating_duration_since(self.began));
        self.pending.extend([
            (Metric::RanksStarted, 1),
            (Metric::RanksRunning, 1),
            (Metric::StartLatency, latency),
        ]);
    }

    pub(crate) fn rank_ended(&mut self, failed: bool) {
        self.pending.push((Metric::RanksRunning, -1));
        if failed {
            self.pending.push((Metric::RanksFailed, 1));
        }
    }

    /// What is new; `written` counts the lines and bytes that all ranks have written so far.
    pub(crate) fn take(&mut self, now: Instant, written: impl FnOnce() -> (u64, u64)) -> Vec<MetricChange> {
        if now < self.look_at {
            return Vec::new();
        }
        self.look_at = now + INTERRUPT_EVERY;
        if now >= self.tell_output_at {
            self.tell_output_at = now + TELL_OUTPUT_EVERY;
            self.count_output(written());
        }
        std::mem::take(&mut self.pending)
    }

    /// What is new, and all of the output.
    pub(crate) fn take_all(&mut self, written: (u64, u64)) -> Vec<MetricChange> {
        self.count_output(written);
        std::mem::take(&mut self.pending)
    }

    fn count_output(&mut self, written: (u64, u64)) {
        if written != self.reported {
            let grown = |now: u64, before: u64| i64::try_from(now - before).unwrap_or(i64::MAX);
            self.pending.push((Metric::LogsLines, grown(written.0, self.reported.0)));
            self.pending.push((Metric::LogsBytes, grown(written.1, self.reported.1)));
            self.reported = written;
        }
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_told_once_a_second_and_nothing_twice() {
        let mut metrics = Metrics::new();
        let start = Instant::now();
        metrics.rank_started(start, Attempt::new(1));
        let first = metrics.take(start, || (1, 10));
        assert_eq!(
            first.iter().map(|(metric, _)| *metric).collect::<Vec<_>>(),
            [
                Metric::RanksRestarted,
                Metric::RanksStarted,
                Metric::RanksRunning,
                Metric::StartLatency,
                Metric::LogsLines,
                Metric::LogsBytes
            ]
        );
        metrics.rank_ended(true);
        let soon = metrics.take(start + INTERRUPT_EVERY, || (2, 20));
        assert_eq!(soon, [(Metric::RanksRunning, -1), (Metric::RanksFailed, 1)], "NODE-22");
        assert!(metrics.take(start + TELL_OUTPUT_EVERY / 2, || (3, 30)).is_empty(), "NODE-22");
        assert_eq!(metrics.take_all((4, 40)), [(Metric::LogsLines, 3), (Metric::LogsBytes, 30)]);
        assert!(metrics.take_all((4, 40)).is_empty());
    }
}
