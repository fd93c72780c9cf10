//! What the hub and the node's process are told of ranks: what they do, and how they ended.
//!
//! - NODE-53 (last-report): what a rank reported last before its end is told, however it ended, before how it ended.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use log::Level;
use phalanx_types::contract::REPORTS_BYTES;
use phalanx_types::message::{MAX_PHASES, NodeMessage, RankActivity};
use phalanx_types::{RankNote, RankState};

use super::Effects;
use crate::metric::MetricChange;
use crate::node::helpers::helper::Helper;
use crate::node::machine::{Ended, Event, Evidence, ProcessEnd};
use crate::node::news::News;
use crate::node::process::INTERRUPT_EVERY;
use crate::node::rank::Rank;
use crate::node::rank::evidence::Leftovers;

/// How much of its ranks' reports a node tells at a time, where each is wanted.
const TOLD_BYTES: usize = 256 << 10;

impl Effects<'_, '_> {
    /// Takes in what a rank has told. Whether it has something to report.
    pub(super) fn take_notes(&mut self, rank: u32) -> bool {
        let Some(of) = self.ranks.get_mut(&rank) else { return false };
        let (hub, job) = (self.line.teller(), &self.options.spec.job.id);
        let mut reports = false;
        let (notes, overtaken) = of.mailbox.take();
        of.reports.overtaken(overtaken);
        for note in notes {
            of.progress.take(&note);
            match note {
                RankNote::Beat(_) | RankNote::Returned(_) => {}
                RankNote::Report(report) => {
                    of.reports.note(&report);
                    reports = true;
                }
                RankNote::Error(error) => of.noted_error = Some(*error),
                RankNote::Phase(_) if of.phases >= MAX_PHASES => {}
                RankNote::Phase(name) => {
                    let (name, nth) = (name.chars().take(80).collect(), of.phases);
                    of.phases += 1;
                    hub.tell(Instant::now(), NodeMessage::Phase { rank, name, nth, age_us: 0 });
                }
                RankNote::Saved(step) => hub.send(NodeMessage::Saved { step }),
                RankNote::Cold(why) => {
                    // One rank's reason is as a rule that of all.
                    let level = if self.said_cold { Level::Debug } else { Level::Warn };
                    self.said_cold = true;
                    log::log!(level, "job {job}: rank {rank} starts again without the warm pool: {why}");
                }
            }
        }
        reports
    }

    pub(super) fn started(&mut self, rank: u32, at: Instant) {
        self.metrics.rank_started(at, self.attempt);
        if let Some(of) = self.ranks.get_mut(&rank) {
            of.progress.started();
        }
    }

    pub(super) fn tell_activity(&mut self, ranks: &[(u32, u32)]) {
        let has_unread = |(rank, _): &&(u32, u32)| self.ranks.get(rank).is_some_and(Rank::has_unread_reports);
        let most = TOLD_BYTES / ranks.iter().filter(has_unread).count().max(1);
        ranks.iter().for_each(|(rank, _)| self.tell_reports(*rank, most));
        let activity =
            |(rank, pid): &(u32, u32)| self.ranks.get(rank).map(|of| of.activity(*rank, Some(*pid)));
        let ranks = ranks.iter().filter_map(activity).collect();
        self.line.teller().send(NodeMessage::Activity { ranks });
    }

    /// Tells what a rank has reported, of this size at most.
    fn tell_reports(&mut self, rank: u32, most: usize) {
        let Some(of) = self.ranks.get_mut(&rank) else { return };
        let hub = self.line.teller();
        of.read_reports(rank, most).into_iter().for_each(|reports| hub.tell(Instant::now(), reports));
    }

    /// Has what a rank left looked at.
    pub(super) fn gather(&mut self, ended: Ended) {
        let rank = ended.rank;
        // What it noted last is in the pipe, if it isn't in its mailbox yet.
        if let Some(notes) = self.ranks.get_mut(&rank).and_then(|of| of.notes.take()) {
            notes.finish();
        }
        self.take_notes(rank);
        // What it reported last (NODE-53). It no longer runs, so how long it was quiet for is no sign of a hang.
        self.tell_reports(rank, REPORTS_BYTES);
        if let Some(of) = self.ranks.get(&rank).filter(|of| of.progress.step.is_some()) {
            let last = RankActivity { idle_ms: 0, ..of.activity(rank, None) };
            self.line.teller().tell(Instant::now(), NodeMessage::Activity { ranks: vec![last] });
        }
        if let Some(of) = self.ranks.get_mut(&rank) {
            of.asked = of.socket.take().and_then(|socket| socket.words().freeze());
        }
        let Some(leftovers) = self.leftovers(ended) else { return };
        let tell = self.tell.clone();
        let read = move |leftovers: Leftovers| {
            let _ = tell.send(News::Event(Event::Gathered(Box::new(leftovers.read()))));
        };
        match self.evidence.take().map_or_else(|| Helper::start("phalanx-evidence", read), Ok) {
            Ok(helper) => self.evidence.insert(helper).give(leftovers),
            Err(e) => {
                log::warn!("job {}: {e}", self.options.spec.job.id);
                self.say(Event::Gathered(Box::new(leftovers.without_disk())));
            }
        }
    }

    pub(super) fn leftovers(&self, ended: Ended) -> Option<Leftovers> {
        let of = self.ranks.get(&ended.rank)?;
        let out_of_memory = match &ended.end {
            ProcessEnd::Exited(exit) => self.oom.killed_before(exit.at),
            ProcessEnd::WithGuard { .. } | ProcessEnd::NotStarted { .. } => false,
        };
        Some(Leftovers {
            ended,
            host: self.options.here.host.clone(),
            dir: of.dir.clone(),
            log: Arc::clone(&of.log),
            noted_error: of.noted_error.clone(),
            out_of_memory,
        })
    }

    pub(super) fn tell_exit(&mut self, evidence: Evidence) {
        let Evidence { mut exit, at, .. } = evidence;
        exit.asked = self.ranks.get(&exit.rank).and_then(|of| of.asked);
        let is_failure = exit.failure().is_some();
        if exit.state != RankState::NotStarted {
            self.metrics.rank_ended(is_failure);
        }
        if is_failure {
            self.failed.push((exit.rank, exit.describe()));
        }
        self.line.teller().tell(at, NodeMessage::RankEnded { exit: Box::new(exit) });
    }

    /// Tells the process how metrics have changed, from time to time, and sees whether memory is short. Looks at the
    /// ranks' words, and tells ranks what there was no room for (GUARD-16).
    pub(crate) fn observe(&mut self) {
        let now = Instant::now();
        if self.ranks.is_empty() || now < self.observe_at {
            return;
        }
        self.observe_at = now + INTERRUPT_EVERY;
        let mut reports = false;
        for of in self.ranks.values_mut() {
            if let Some(socket) = &of.socket {
                socket.send_news();
                of.progress.reported(socket.words().reported());
                reports |= socket.reports().has_more();
            }
        }
        if reports {
            self.say(Event::Reported);
        }
        self.oom.sample(now);
        let ranks = &self.ranks;
        let changes = self.metrics.take(now, || written(ranks));
        self.tell_process(changes);
    }

    /// Tells it all.
    pub(crate) fn observe_all(&mut self) {
        if self.ranks.is_empty() {
            return;
        }
        let changes = self.metrics.take_all(written(&self.ranks));
        self.tell_process(changes);
    }

    fn tell_process(&self, changes: Vec<MetricChange>) {
        if !changes.is_empty() {
            self.process.observed(changes);
        }
    }
}

/// Lines and bytes that the ranks have written so far.
fn written(ranks: &BTreeMap<u32, Rank>) -> (u64, u64) {
    let all = ranks.values().map(|rank| (rank.log.lines(), rank.log.end()));
    all.fold((0, 0), |(lines, bytes), (of_lines, of_bytes)| (lines + of_lines, bytes + of_bytes))
}
