//! The reports that wait for a caller that wants each, however slow it is.
//!
//! - DRIVER-47 (bounded): they have [`MAX_WAITING_REPORT_BYTES`] together, and each rank its newest beside. Beyond that
//!   the oldest of the rank that tells more are left out, and counted.

use std::collections::{BTreeMap, VecDeque};

use phalanx_types::message::TimedReport;

use crate::driver::state::RankReports;

/// How much of them may wait.
const MAX_WAITING_REPORT_BYTES: usize = 4 << 20;

/// What a report counts for beside its values.
const REPORT_BYTES: usize = 64;

/// All that wait, by rank.
#[derive(Debug, Default)]
pub(super) struct WaitingReports {
    of: BTreeMap<u32, OfRank>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct OfRank {
    left_out: u64,
    reports: VecDeque<TimedReport>,
}

fn size(report: &TimedReport) -> usize {
    report.values.len() + REPORT_BYTES
}

impl WaitingReports {
    /// Puts reports behind those of their rank; whether none of it waited.
    pub(super) fn put(&mut self, reports: RankReports) -> bool {
        let is_first = !self.of.contains_key(&reports.rank);
        let of = self.of.entry(reports.rank).or_default();
        of.left_out = of.left_out.saturating_add(reports.left_out);
        for report in reports.reports {
            self.bytes += size(&report);
            of.reports.push_back(report);
            while self.bytes > MAX_WAITING_REPORT_BYTES
                && of.reports.len() > 1
                && let Some(oldest) = of.reports.pop_front()
            {
                self.bytes -= size(&oldest);
                of.left_out = of.left_out.saturating_add(1);
            }
        }
        is_first
    }

    /// All of a rank; then nothing of it waits.
    pub(super) fn take(&mut self, rank: u32) -> Option<RankReports> {
        let OfRank { left_out, reports } = self.of.remove(&rank)?;
        self.bytes -= reports.iter().map(size).sum::<usize>();
        Some(RankReports { rank, left_out, reports: reports.into() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reports(rank: u32, steps: std::ops::Range<u64>, bytes: usize) -> RankReports {
        let report = |step| TimedReport { step, at_ms: 0, values: "x".repeat(bytes) };
        RankReports { rank, left_out: 0, reports: steps.map(report).collect() }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(u32, u64),
        Take(u32),
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn whatever_waits_is_bounded_and_each_report_is_there_or_counted(
            steps in proptest::collection::vec(
                prop_oneof![
                    3 => (0..3_u32, 1..400_u64).prop_map(|(rank, count)| Step::Put(rank, count)),
                    1 => (0..3_u32).prop_map(Step::Take),
                ],
                0..60,
            )
        ) {
            let mut waiting = WaitingReports::default();
            let (mut told, mut known, mut waits) = ([0; 3], [0; 3], [false; 3]);
            let most = 3 * (1000 + REPORT_BYTES) + MAX_WAITING_REPORT_BYTES;
            let take = |waiting: &mut WaitingReports, rank: u32, told: u64, known: &mut u64| {
                let Some(taken) = waiting.take(rank) else { return false };
                assert_eq!(taken.reports.last().map(|report| report.step), Some(told - 1), "the newest stays");
                assert!(taken.reports.is_sorted_by(|a, b| a.step < b.step));
                *known += taken.left_out + taken.reports.len() as u64;
                assert_eq!(*known, told, "DRIVER-47");
                true
            };
            for step in steps {
                match step {
                    Step::Put(rank, count) => {
                        let of = rank as usize;
                        let is_first = waiting.put(reports(rank, told[of]..told[of] + count, 1000));
                        prop_assert_eq!(is_first, !waits[of]);
                        (told[of], waits[of]) = (told[of] + count, true);
                    }
                    Step::Take(rank) => {
                        let of = rank as usize;
                        prop_assert_eq!(take(&mut waiting, rank, told[of], &mut known[of]), waits[of]);
                        waits[of] = false;
                    }
                }
                prop_assert!(waiting.bytes <= most, "DRIVER-47: {}", waiting.bytes);
            }
            for rank in 0..3 {
                take(&mut waiting, rank, told[rank as usize], &mut known[rank as usize]);
            }
            prop_assert_eq!(waiting.bytes, 0);
        }
    }
}
