//! An attempt while its ranks run. It acts at once on what the guard, the hub, the ranks and the node's own process
//! say.
//!
//! One thread takes all decisions of a node, and takes them here.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::select;
use log::Level;
use phalanx_supervisor::{ExitStatus, GuardEvent, stacks_signal};
use phalanx_types::contract::FILE_RESULT;
use phalanx_types::message::{HubMessage, MAX_PHASES, NodeMessage, RankActivity};
use phalanx_types::rank_file::PieceWanted;
use phalanx_types::{Carrier, Policy, RankNote, RankState};

use crate::metric::MetricChange;
use crate::node::attempt::{Attempt, Phase};
use crate::node::pieces::FilesOf;
use crate::node::process::{INTERRUPT_EVERY, Process};
use crate::node::ranks::{Exit, Rank, RankProcess};
use crate::node::stacks::StacksRequest;

/// How long a rank's output may still come after its exit: a process that it left behind may hold the pipe.
const OUTPUT_GRACE: Duration = Duration::from_millis(300);

/// How often news of steps go to the hub, at the most.
const REPORT_EVERY: Duration = Duration::from_millis(500);
/// How often a node tells what its ranks do where they have no news.
const ACTIVITY_EVERY: Duration = Duration::from_secs(5);

/// How often a node tells what its ranks do: several times within a time-out for hangs.
fn tell_activity_every(policy: &Policy) -> Duration {
    if policy.hang_timeout.is_zero() {
        ACTIVITY_EVERY
    } else {
        (policy.hang_timeout / 8).clamp(INTERRUPT_EVERY, ACTIVITY_EVERY)
    }
}

impl Attempt<'_> {
    /// Until every rank has ended, nothing of them is left, their results are at the hub, and nobody needs what this
    /// node serves.
    pub(crate) fn watch(&mut self, process: &Process) {
        while !self.is_gone()
            || self.ranks.iter().any(is_unreported)
            || self.uploads.pending()
            || self.is_needed()
        {
            // After its last event the guard is of no more interest.
            let guard = if self.is_gone() { crossbeam_channel::never() } else { self.guard.events().clone() };
            let (orders, woken) = (self.line.orders(), self.woken.clone());
            let pieces = self.pieces.answers();
            select! {
                recv(guard) -> event => match event {
                    Ok(event) => self.guard_event(event),
                    Err(_) => self.guard_gone("it closed its connection"),
                },
                recv(orders) -> order => match order {
                    Ok(HubMessage::Stop { reason }) => {
                        self.has_parted = true;
                        self.stop(&reason);
                    }
                    Ok(HubMessage::Part) => self.has_parted = true,
                    Ok(HubMessage::Stacks { request }) => {
                        let signal = |rank| self.guard.signal(rank, stacks_signal());
                        self.stacks = Some(StacksRequest::of(request, &self.ranks, signal));
                    }
                    Ok(HubMessage::Carried(carrier)) => self.tell_of(carrier),
                    Ok(HubMessage::Read { request, wanted }) => self.read(request, wanted),
                    // A line that has broken is mended below.
                    Ok(_) | Err(_) => {}
                },
                recv(pieces) -> piece => if let Ok(piece) = piece { self.line.send(piece); },
                recv(woken) -> _ => {}
                default(INTERRUPT_EVERY) => {}
            }
            self.take_notes();
            self.oom.sample(Instant::now());
            self.report_ended(Instant::now());
            let changes = self.metrics.take(Instant::now(), || written(&self.ranks));
            tell(process, changes);
            self.heed(process);
            self.tell_activity(Instant::now());
        }
        let changes = self.metrics.take_all(written(&self.ranks));
        tell(process, changes);
    }

    /// Whether ranks of other nodes may need what this one serves: all of its own have ended well. ENDING-2
    fn is_needed(&self) -> bool {
        self.serves
            && !self.has_parted
            && self.phase.stopped().is_none()
            && self.interrupted.is_none()
            && self.line.given_up().is_none()
            && self.exits.iter().all(|exit| exit.failure().is_none())
    }

    /// Has this host's store tell the ranks of a carrier. Where it can't, those that need it say so.
    fn tell_of(&mut self, carrier: Carrier) {
        let Some(blocks) = &mut self.blocks else { return };
        let host = carrier.host.clone();
        if let Err(e) = blocks.tell(carrier) {
            log::warn!(
                "job {}: ranks can't be told who serves the blocks of {host}: {e}",
                self.options.spec.job.id
            );
        }
    }

    /// Heeds what the node's process wants, and what has become of the line to the hub.
    fn heed(&mut self, process: &Process) {
        if let Some(reason) = process.interrupted() {
            self.stop(&reason);
            self.interrupted.get_or_insert(reason);
        }
        self.look_at_line();
    }

    fn guard_event(&mut self, event: GuardEvent) {
        match event {
            GuardEvent::Started { rank, pid, at } => {
                if let Some(rank) = self.rank(rank) {
                    rank.process = RankProcess::Running { pid };
                    rank.progress.started();
                }
                // A note may have come before this event.
                self.tell_activity_at = self.tell_activity_at.min(Instant::now() + REPORT_EVERY);
                self.metrics.rank_started(at, self.number);
                self.line.tell(at, NodeMessage::RankStarted { rank, pid, age_us: 0 });
            }
            GuardEvent::NotStarted { rank, reason, at } => {
                if let Some(rank) = self.rank(rank) {
                    rank.process = RankProcess::NotStarted { reason, at };
                }
            }
            GuardEvent::Ended { rank, how, by_itself, at } => {
                if let Some(rank) = self.rank(rank) {
                    rank.process = RankProcess::Ended(Exit { how, by_itself, at });
                }
            }
            GuardEvent::Empty => self.phase = Phase::Gone(self.phase.stopped()),
            GuardEvent::Gone { reason } => self.guard_gone(&reason),
        }
        if !self.is_gone() && self.ranks.iter().all(|rank| rank.process.is_over()) {
            // Ends what the ranks left behind; answers with Empty.
            self.guard.stop();
        }
    }

    fn read(&mut self, request: u32, wanted: PieceWanted) {
        let answer = match self.ranks.iter().find(|rank| rank.rank == wanted.rank) {
            Some(rank) => {
                let (log, dir) = (Arc::clone(&rank.log), rank.dir.clone());
                let of = FilesOf { log, dir, runs: !rank.process.is_over() };
                self.pieces.read(request, wanted, of)
            }
            None => {
                let why = format!("this node doesn't have rank {}", wanted.rank);
                Some(NodeMessage::Piece { request, piece: Err(why) })
            }
        };
        if let Some(answer) = answer {
            self.line.send(answer);
        }
    }

    fn rank(&mut self, number: u32) -> Option<&mut Rank> {
        self.ranks.iter_mut().find(|rank| rank.rank == number)
    }

    fn guard_gone(&mut self, reason: &str) {
        self.phase = Phase::Gone(self.phase.stopped());
        let why = format!(
            "phalanx-guard, the process above the ranks, has ended ({reason}), and the ranks with it"
        );
        let exit = Exit { how: ExitStatus::Signal(9), by_itself: false, at: Instant::now() };
        for rank in self.ranks.iter_mut().filter(|rank| !rank.process.is_over()) {
            rank.process = RankProcess::Ended(exit);
        }
        self.problem.get_or_insert(why);
    }

    /// Tells what the ranks do, from time to time, and what they were asked for, when it is there.
    fn tell_activity(&mut self, now: Instant) {
        if let Some((request, ranks)) = self.stacks.as_mut().and_then(|asked| asked.answer(now)) {
            self.stacks = None;
            self.line.send(NodeMessage::Stacks { request, ranks });
        }
        if now >= self.tell_activity_at {
            self.tell_activity_at = now + tell_activity_every(&self.options.spec.job.policy);
            // The hub takes what is told of ranks that it knows to run.
            let run = self.ranks.iter().filter(|rank| matches!(rank.process, RankProcess::Running { .. }));
            let ranks: Vec<_> = run.map(Rank::activity).collect();
            if self.phase.stopped().is_none() && !ranks.is_empty() {
                self.line.send(NodeMessage::Activity { ranks });
            }
        }
    }

    /// Takes in what the ranks have told.
    fn take_notes(&mut self) {
        let told: Vec<_> = self.ranks.iter().map(|rank| (rank.rank, Arc::clone(&rank.mailbox))).collect();
        for (rank, mailbox) in told {
            for note in mailbox.take() {
                self.note(rank, note);
            }
        }
    }

    fn note(&mut self, rank: u32, note: RankNote) {
        let Some(of) = self.ranks.iter_mut().find(|of| of.rank == rank) else { return };
        of.progress.take(&note);
        match note {
            RankNote::Beat(_) => {}
            RankNote::Report(_) => {
                self.tell_activity_at = self.tell_activity_at.min(Instant::now() + REPORT_EVERY);
            }
            RankNote::Error(error) => of.noted_error = Some(*error),
            RankNote::Phase(_) if of.phases >= MAX_PHASES => {}
            RankNote::Phase(name) => {
                let (name, nth) = (name.chars().take(80).collect(), of.phases);
                of.phases += 1;
                self.line.tell(Instant::now(), NodeMessage::Phase { rank, name, nth, age_us: 0 });
            }
            RankNote::Cold(why) => {
                // One rank's reason is as a rule that of all.
                let level = if self.said_cold { Level::Debug } else { Level::Warn };
                self.said_cold = true;
                log::log!(level, "job {}: rank {rank} starts anew, cold: {why}", self.options.spec.job.id);
            }
        }
    }

    /// Reports the ranks that have ended and whose output is in (or won't come any more).
    fn report_ended(&mut self, now: Instant) {
        for i in 0..self.ranks.len() {
            let rank = &self.ranks[i];
            let Some(at) = rank.unreported() else { continue };
            if !rank.log.finished() && now < at + OUTPUT_GRACE {
                continue;
            }
            // What it noted last is in the pipe, if it isn't in its mailbox yet.
            if let Some(notes) = self.ranks[i].notes.take() {
                notes.finish();
            }
            self.take_notes();
            let rank = &mut self.ranks[i];
            // What it reported last. It no longer runs, so how long it was quiet for is no sign of a hang.
            if rank.progress.step.is_some() && self.phase.stopped().is_none() {
                let last = RankActivity { idle_ms: 0, stopped: false, ..rank.activity() };
                self.line.send(NodeMessage::Activity { ranks: vec![last] });
            }
            let (exit, ended_at) = rank.end(&self.options.here.host, self.phase.stopped(), &self.oom);
            if matches!(rank.process, RankProcess::Ended(_)) {
                self.metrics.rank_ended(exit.failure().is_some());
            }
            rank.process = RankProcess::Reported;
            if exit.state == RankState::Finished {
                self.upload(i);
            }
            self.exits.push(exit.clone());
            self.line.tell(ended_at, NodeMessage::RankEnded { exit: Box::new(exit) });
        }
    }

    fn upload(&mut self, i: usize) {
        let (rank, path) = (self.ranks[i].rank, self.ranks[i].dir.join(FILE_RESULT));
        if path.exists()
            && let Err(e) = self.uploads.start(rank, path)
        {
            self.problem.get_or_insert(e.to_string());
        }
    }
}

fn is_unreported(rank: &Rank) -> bool {
    !matches!(rank.process, RankProcess::Reported)
}

fn tell(process: &Process, changes: Vec<MetricChange>) {
    if !changes.is_empty() {
        process.observed(changes);
    }
}

/// Lines and bytes that the ranks have written so far.
fn written(ranks: &[Rank]) -> (u64, u64) {
    ranks.iter().fold((0, 0), |(lines, bytes), rank| (lines + rank.log.lines(), bytes + rank.log.end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_do_is_told_eight_times_in_a_time_out_for_hangs_and_every_5_s_at_least() {
        for (hang_timeout_ms, every_ms) in
            [(0, 5000), (100, 50), (4000, 500), (40_000, 5000), (600_000, 5000)]
        {
            let policy = Policy { hang_timeout: Duration::from_millis(hang_timeout_ms), ..Policy::default() };
            assert_eq!(tell_activity_every(&policy), Duration::from_millis(every_ms), "{hang_timeout_ms} ms");
        }
    }
}
