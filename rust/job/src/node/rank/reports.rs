//! What a rank has reported, from its memory or its notes, as the hub is told it where the run wants every report.
//!
//! - NODE-51 (every-report): where a rank's reports are wanted, the hub is told each that was read, in the rank's
//!   order, with its number (TYPES-29), its step and its own time; at a rank's end all that are left, however it ended.
//! - NODE-58 (newest-shown): what displays are shown of a rank is its newest report, however many older ones wait to be
//!   told. Each is progress once, when it is the newest.
//! - NODE-52 (bounded): what isn't told yet stays in the rank's memory, where the newest are (GUARD-20). Of notes as
//!   many wait here as [`MAX_NOTED`].

use std::collections::VecDeque;
use std::time::SystemTime;

use phalanx_supervisor::ReportRecord;
use phalanx_types::contract::Report;
use phalanx_types::message::{NodeMessage, TimedReport};

/// How many reports wait that came as notes: those of a rank that has no memory for them.
const MAX_NOTED: usize = 1000;

/// How much the reports of one message have, unless it is one report.
const MESSAGE_BYTES: usize = 128 << 10;

/// The reports of one rank that are to be told.
#[derive(Debug, Default)]
pub(crate) struct RankReports {
    pub(crate) wanted: bool,
    /// How many came as notes; the numbers of all others begin behind these.
    noted: u64,
    /// What the next one's number is, if none is missing.
    next: u64,
    step: u64,
    /// The number of the newest in its memory that was seen.
    seen: Option<u64>,
    waiting: VecDeque<(u64, TimedReport)>,
}

impl RankReports {
    pub(crate) fn new(wanted: bool) -> RankReports {
        RankReports { wanted, ..RankReports::default() }
    }

    /// Takes what was read of the rank's memory, and the newest that wasn't. The newest report, if it wasn't seen
    /// before. What is none is missing from the numbers.
    pub(crate) fn take(
        &mut self,
        records: Vec<ReportRecord>,
        newest: Option<&ReportRecord>,
    ) -> Option<Report> {
        let mut last = None;
        for record in records {
            let Some(report) = report_of(&record) else { continue };
            self.put(record.number.saturating_add(self.noted), &report);
            last = Some((record.number, report));
        }
        let newest = newest.and_then(|record| Some((record.number, report_of(record)?))).or(last);
        let (number, report) = newest.filter(|(number, _)| self.seen.is_none_or(|seen| *number > seen))?;
        self.seen = Some(number);
        Some(report)
    }

    /// Takes a note.
    pub(crate) fn note(&mut self, report: &Report) {
        self.put(self.next, report);
        self.noted += 1;
        if self.waiting.len() > MAX_NOTED {
            self.waiting.pop_front();
        }
    }

    /// So many notes were overtaken by the next: they are missing from the numbers.
    pub(crate) fn overtaken(&mut self, notes: u64) {
        self.next = self.next.saturating_add(notes);
        self.noted += notes;
    }

    fn put(&mut self, number: u64, report: &Report) {
        self.next = number.saturating_add(1);
        self.step = report.step.unwrap_or(self.step);
        if self.wanted {
            let values = serde_json::to_string(&report.values).unwrap_or_default();
            let at_ms = report.at_ms.unwrap_or_else(now_ms);
            self.waiting.push_back((number, TimedReport { step: self.step, at_ms, values }));
        }
    }

    /// What the hub is to be told of them; then nothing waits.
    pub(crate) fn messages(&mut self, rank: u32) -> Vec<NodeMessage> {
        let mut messages = Vec::new();
        let (mut first, mut reports, mut bytes) = (0, Vec::new(), 0);
        let mut told = |first, reports: &mut Vec<TimedReport>| {
            if !reports.is_empty() {
                messages.push(NodeMessage::Reports { rank, first, reports: std::mem::take(reports) });
            }
        };
        for (number, report) in self.waiting.drain(..) {
            if number.checked_sub(first) != Some(reports.len() as u64) || bytes >= MESSAGE_BYTES {
                told(first, &mut reports);
                bytes = 0;
            }
            if reports.is_empty() {
                first = number;
            }
            bytes += report.values.len();
            reports.push(report);
        }
        told(first, &mut reports);
        messages
    }
}

fn report_of(record: &ReportRecord) -> Option<Report> {
    serde_json::from_slice(&record.bytes).ok()
}

#[allow(clippy::disallowed_methods, reason = "the time that people read")]
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn record(number: u64) -> ReportRecord {
        let bytes = json!({"step": 10 * number, "at_ms": number, "values": {"loss": 0.5}}).to_string();
        ReportRecord { number, bytes: bytes.into_bytes() }
    }

    /// Numbers and steps.
    fn told(messages: &[NodeMessage]) -> Vec<(u64, u64)> {
        let mut told = Vec::new();
        for message in messages {
            let NodeMessage::Reports { rank: 3, first, reports } = message else { panic!("{message:?}") };
            told.extend((*first..).zip(reports.iter().map(|report| report.step)));
        }
        told
    }

    #[test]
    fn reports_have_their_numbers_steps_and_times_and_what_was_overwritten_is_missing() {
        let mut reports = RankReports::new(true);
        let newest = reports.take([0, 1, 7, 8].map(record).into(), None);
        assert_eq!(newest.unwrap().step, Some(80));
        let bad = ReportRecord { number: 9, bytes: b"{".to_vec() };
        reports.take(vec![bad, record(10)], None);
        let messages = reports.messages(3);
        assert_eq!(told(&messages), [(0, 0), (1, 10), (7, 70), (8, 80), (10, 100)], "NODE-51, TYPES-29");
        let NodeMessage::Reports { reports: first, .. } = &messages[0] else { panic!() };
        assert_eq!((first[1].at_ms, first[1].values.as_str()), (1, r#"{"loss":0.5}"#), "NODE-51");
        assert!(reports.messages(3).is_empty());
    }

    #[test]
    fn the_newest_is_seen_once_however_many_older_ones_are_read_later() {
        let mut reports = RankReports::new(true);
        let mut seen = |records: &[u64], newest: Option<u64>| {
            let records = records.iter().map(|number| record(*number)).collect();
            reports.take(records, newest.map(record).as_ref()).and_then(|report| report.step)
        };
        assert_eq!(seen(&[0, 1], Some(9)), Some(90), "NODE-58");
        assert_eq!(seen(&[2, 3], Some(9)), None, "NODE-58: no progress since");
        assert_eq!(seen(&[4, 5], Some(10)), Some(100), "NODE-58");
        assert_eq!(seen(&[6, 7, 8, 9, 10], None), None);
        assert_eq!(seen(&[11], None), Some(110), "NODE-58");
        assert!(told(&reports.messages(3)).into_iter().map(|(number, _)| number).eq(0..12), "NODE-51");
    }

    #[test]
    fn messages_are_of_a_bounded_size() {
        let mut reports = RankReports::new(true);
        reports.take((0..100_000).map(record).collect(), None);
        let messages = reports.messages(3);
        assert!(told(&messages).into_iter().map(|(number, _)| number).eq(0..100_000), "NODE-51");
        let size = |message: &NodeMessage| serde_json::to_vec(message).unwrap().len();
        assert!(messages.iter().all(|message| size(message) < 1 << 20), "NODE-52");
    }

    #[test]
    fn where_nobody_wants_them_only_the_newest_is_known() {
        let mut reports = RankReports::new(false);
        assert_eq!(reports.take(vec![record(4)], None).unwrap().step, Some(40));
        reports.note(&Report::default());
        assert!(reports.messages(3).is_empty());
    }

    #[test]
    fn notes_are_numbered_and_those_that_wait_are_bounded() {
        let mut reports = RankReports::new(true);
        for step in 0..3000 {
            reports.note(&Report { step: Some(step), ..Report::default() });
        }
        reports.note(&Report::default());
        let noted = told(&reports.messages(3));
        assert_eq!((noted.len(), noted[0], noted[999]), (MAX_NOTED, (2001, 2001), (3000, 2999)), "NODE-52");
        reports.overtaken(6);
        reports.note(&Report::default());
        assert_eq!(told(&reports.messages(3)), [(3007, 2999)], "NODE-51");
        reports.take(vec![record(0)], None);
        assert_eq!(told(&reports.messages(3)), [(3008, 0)], "NODE-51");
    }
}
