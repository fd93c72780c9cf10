//! What a node has told the hub. It is kept so that it can be told again, with its age at that time.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use phalanx_rendezvous::wire::MAX_FRAME_BYTES;
use phalanx_types::message::NodeMessage;

/// How much of the ranks' reports is kept: more than what is on its way while a connection breaks.
const MAX_REPORT_BYTES: usize = 2 << 20;

/// A fact and when it was first told, so that a later telling can age it.
struct Fact {
    at: Instant,
    message: NodeMessage,
}

/// All that is told again.
#[derive(Default)]
pub(super) struct Facts {
    facts: Vec<Fact>,
    /// The newest, and the size of each.
    reports: VecDeque<(NodeMessage, usize)>,
    report_bytes: usize,
}

impl Facts {
    /// Keeps a fact of something that happened at `at`. NODE-54
    pub(super) fn keep(&mut self, at: Instant, message: NodeMessage) {
        let NodeMessage::Reports { reports, .. } = &message else {
            return self.facts.push(Fact { at, message });
        };
        let size = reports.iter().map(|report| report.values.len() + size_of_val(report)).sum();
        self.report_bytes += size;
        self.reports.push_back((message, size));
        while self.report_bytes > MAX_REPORT_BYTES
            && let Some((_, oldest)) = self.reports.pop_front()
        {
            self.report_bytes -= oldest;
        }
    }

    /// What is told over a new connection. Reports come first, for nothing comes after a node is done.
    pub(super) fn retold(&self) -> impl Iterator<Item = NodeMessage> {
        let reports = self.reports.iter().map(|(reports, _)| reports.clone());
        let is_over = |fact: &&Fact| match &fact.message {
            NodeMessage::Notice(notice) => {
                notice.in_ms.is_some_and(|ms| fact.at.elapsed() >= Duration::from_millis(ms))
            }
            _ => false,
        };
        let facts = self.facts.iter().filter(move |fact| !is_over(fact));
        reports.chain(facts.map(|fact| aged(&fact.message, fact.at)))
    }

    /// Nobody needs them any more.
    pub(super) fn forget(&mut self) {
        *self = Facts::default();
    }
}

/// The message as it is told now of something that happened at `at`.
pub(super) fn aged(message: &NodeMessage, at: Instant) -> NodeMessage {
    let age = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut message = message.clone();
    match &mut message {
        NodeMessage::RankStarted { age_us, .. } | NodeMessage::Phase { age_us, .. } => *age_us = age,
        NodeMessage::Notice(notice) => {
            notice.in_ms = notice.in_ms.map(|ms| ms.saturating_sub(age / 1000));
        }
        NodeMessage::RankEnded { exit } => {
            exit.at_us = -i64::try_from(age).unwrap_or(i64::MAX);
            exit.last_output_us = exit.last_output_us.map(|before| before + exit.at_us);
        }
        _ => {}
    }
    message
}

/// Microseconds from `reference` to `at`.
pub(crate) fn signed_us(at: Instant, reference: Instant) -> i64 {
    let us = |d: Duration| i64::try_from(d.as_micros()).unwrap_or(i64::MAX);
    if at >= reference { us(at - reference) } else { -us(reference - at) }
}

/// Whether the hub takes it in one frame, with whatever is around it. NODE-11
pub(super) fn fits(message: &NodeMessage) -> bool {
    serde_json::to_vec(message).is_ok_and(|bytes| bytes.len() < MAX_FRAME_BYTES - 1024)
}

#[cfg(test)]
mod tests {
    use phalanx_types::Notice;
    use phalanx_types::message::TimedReport;

    use super::*;

    #[test]
    fn of_reports_the_newest_are_told_again_and_before_all_else() {
        let mut facts = Facts::default();
        let done = NodeMessage::Done { problem: None, interrupted: None, output: Vec::new() };
        facts.keep(Instant::now(), done.clone());
        let reports = |first| {
            let report = TimedReport { step: first, at_ms: 0, values: "x".repeat(1000) };
            NodeMessage::Reports { rank: 0, first, reports: vec![report; 100] }
        };
        (0..1000).for_each(|first| facts.keep(Instant::now(), reports(first)));
        let retold: Vec<NodeMessage> = facts.retold().collect();
        assert!((10..=22).contains(&retold.len()), "NODE-54: {}", retold.len());
        assert_eq!(retold.last(), Some(&done), "NODE-54");
        assert_eq!(retold[retold.len() - 2], reports(999), "NODE-54");
        facts.forget();
        assert_eq!(facts.retold().count(), 0);
    }

    #[test]
    fn a_notice_is_told_again_with_the_time_that_is_left_and_not_when_that_is_over() {
        let mut facts = Facts::default();
        let notice = |in_ms| NodeMessage::Notice(Notice { in_ms, reason: "spot".into() });
        let before = Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        for in_ms in [Some(9000), Some(60_000), None] {
            facts.keep(before, notice(in_ms));
        }
        let retold: Vec<NodeMessage> = facts.retold().collect();
        let [NodeMessage::Notice(Notice { in_ms: Some(left), .. }), unknown] = &retold[..] else {
            panic!("{retold:?}")
        };
        assert!((40_000..=50_000).contains(left), "{left}");
        assert_eq!(*unknown, notice(None));
    }

    #[test]
    fn a_fact_that_no_frame_takes_is_known() {
        let phase = |bytes| NodeMessage::Phase { rank: 0, name: "x".repeat(bytes), nth: 0, age_us: 0 };
        assert!(fits(&phase(MAX_FRAME_BYTES / 2)));
        assert!(!fits(&phase(MAX_FRAME_BYTES)), "NODE-11");
    }
}
