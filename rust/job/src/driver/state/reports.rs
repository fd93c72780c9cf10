//! The reports of ranks of which the caller wants each: every one once, in order, and how many are missing.
//!
//! - DRIVER-46 (each-once): what a node tells again is passed over by its number (TYPES-29), and numbers that a later
//!   one has jumped are counted as left out.

use std::collections::BTreeMap;

use phalanx_types::message::TimedReport;

use super::news::RankReports;

/// Which number each rank's next report has.
#[derive(Debug, Default)]
pub(super) struct ReportNumbers(BTreeMap<u32, u64>);

impl ReportNumbers {
    /// What is new of reports that a node tells, the first of which has this number.
    pub(super) fn take(&mut self, rank: u32, first: u64, reports: Vec<TimedReport>) -> Option<RankReports> {
        let next = self.0.entry(rank).or_default();
        let known = usize::try_from(next.saturating_sub(first)).unwrap_or(usize::MAX);
        let new: Vec<TimedReport> = reports.into_iter().skip(known).collect();
        let left_out = first.saturating_sub(*next);
        if new.is_empty() {
            return None;
        }
        *next = first.max(*next).saturating_add(new.len() as u64);
        Some(RankReports { rank, left_out, reports: new })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn report(number: u64) -> TimedReport {
        TimedReport { step: number, at_ms: 0, values: "{}".into() }
    }

    proptest! {
        #[test]
        fn however_often_they_are_told_each_counts_once(
            told in proptest::collection::vec((0..2_u32, 0..300_u64, 0..40_u64), 0..40)
        ) {
            let mut numbers = ReportNumbers::default();
            let (mut taken, mut left_out) = ([Vec::new(), Vec::new()], [0, 0]);
            for (rank, first, count) in told {
                let of = rank as usize;
                if let Some(new) = numbers.take(rank, first, (first..first + count).map(report).collect()) {
                    prop_assert_eq!(new.rank, rank);
                    left_out[of] += new.left_out;
                    taken[of].extend(new.reports.iter().map(|report| report.step));
                }
                let last = taken[of].last().map_or(0, |last: &u64| last + 1);
                prop_assert_eq!(left_out[of] + taken[of].len() as u64, last, "DRIVER-46");
                prop_assert!(taken[of].is_sorted_by(|a, b| a < b), "DRIVER-46");
            }
        }
    }
}
