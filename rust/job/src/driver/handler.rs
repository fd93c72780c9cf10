//! What the hub's events do to a job, on the hub's thread: facts go to the state machine, output to the console,
//! results to their files, and news to the caller.
//!
//! DRIVER-4 (outcome-last): the outcome is the last event, after all output that came in time.
//! DRIVER-5 (bounded-output): memory for output is bounded by [`MAX_WAITING_OUTPUT_BYTES`] and the hub's buffers. What
//! a slow reader doesn't take waits in files on the nodes.
//! DRIVER-6 (shown-once): each byte of a node's log of a rank is shown once, or a skip says that it isn't. Both stand
//! at offsets of that log, which goes on for as long as its node does, over attempts in place.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::Sender;
use phalanx_rendezvous::{Handler, Opening, Outbox, Seat};
use phalanx_types::message::{HubMessage, NodeMessage, OutputTotal};
use phalanx_types::rank_file::PieceWanted;
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Attempt, Error, ErrorKind, Job, Result, RunSnapshot, SparkTask};

use crate::console::Console;
use crate::driver::event::{Event, MAX_WAITING_OUTPUT_BYTES};
use crate::driver::event_queue::EventSender;
use crate::driver::host_memory;
use crate::driver::present::Present;
use crate::driver::reads::{Answer, Reads, refuse};
use crate::driver::results::Results;
use crate::driver::state::{JobOutcome, JobState, Restart, StageLook};
use crate::driver::view::{History, Snapshots};
use crate::log_tail::LogTails;

/// What the owner of the hub wants.
pub(super) enum Command {
    StageEnded(Attempt, Option<String>),
    StageSeen(Attempt, StageLook),
    /// Spark decommissions the executors of these tasks, by their attempt ids.
    Decommissioned(Vec<u64>),
    Stop(String),
    Stacks(Sender<Vec<RankStacks>>),
    Read(PieceWanted, Answer),
    /// A new snapshot; the answer says that it is there.
    Snapshot(Sender<()>),
}

/// Between the outcome and its event lies the rest of the output.
enum Last {
    Running,
    /// The outcome is known; output may still come until then.
    Draining(JobOutcome, Instant),
    Told,
}

/// What the hub's events do to the job, and what is told of it.
pub(super) struct JobHandler {
    drain_timeout: Duration,
    state: JobState,
    events: EventSender,
    waiting: Arc<AtomicUsize>,
    view: Console,
    /// How much has arrived of the log that the node of a partition has of a rank. It goes on over attempts in place.
    received: BTreeMap<(u32, u32), u64>,
    /// How many connections for output each partition has open.
    logs: BTreeMap<u32, usize>,
    /// What each partition's node told.
    output_ends: Vec<(u32, OutputTotal)>,
    /// Who waits for stacks.
    askers: Vec<Sender<Vec<RankStacks>>>,
    reads: Reads,
    present: Present,
    results: Results,
    history: History,
    snapshots: Arc<Snapshots>,
    /// As it was told last.
    status: String,
    last: Last,
}

impl JobHandler {
    /// A handler for `job` that begins now. `waiting` counts the bytes of output that wait in `events`; the newest
    /// lines go to `tails`, and what is shown of the job to `snapshots`.
    pub(super) fn new(
        job: Job,
        events: EventSender,
        waiting: Arc<AtomicUsize>,
        present: Present,
        results: Results,
        tails: Arc<LogTails>,
        snapshots: Arc<Snapshots>,
    ) -> JobHandler {
        let now = Instant::now();
        let history = History::new(&job, now);
        let (drain_timeout, view) = (job.logs.drain_timeout, Console::new(tails, job.ranks, &job.logs.shown));
        let mut state = JobState::new(job, now);
        state.begin_with(host_memory::known());
        JobHandler {
            drain_timeout,
            view,
            history,
            snapshots,
            state,
            events,
            waiting,
            received: BTreeMap::new(),
            logs: BTreeMap::new(),
            output_ends: Vec::new(),
            askers: Vec::new(),
            reads: Reads::default(),
            present,
            results,
            status: String::new(),
            last: Last::Running,
        }
    }

    fn emit(&mut self, event: Event) {
        if let Event::Output(text) = &event {
            if text.is_empty() {
                return;
            }
            self.history.shown(text);
            self.waiting.fetch_add(text.len(), Ordering::AcqRel);
        }
        self.events.send(event);
    }

    /// Forgets what the attempt before left: only the last one's results count.
    fn restarted(&mut self, restart: &Restart) {
        self.output_ends.clear();
        let mut text = String::new();
        for (_, rank) in self.received.keys() {
            self.view.finish(*rank, &mut text);
        }
        if let Some(rank) = restart.rank {
            self.view.failed(rank, &mut text);
        }
        // DRIVER-8
        self.present.begin(restart.attempt, restart.generation);
        self.view.announce(&restart.line, &mut text);
        self.emit(Event::Output(text));
        if !restart.in_place {
            // The logs of the new nodes begin anew.
            self.received.clear();
            self.emit(Event::Resubmit { attempt: restart.attempt });
        }
    }

    fn snapshot(&self, now: Instant) -> RunSnapshot {
        self.history.snapshot(now, &self.state)
    }

    /// Tells what is new, and the outcome once the output is in.
    fn advance(&mut self, now: Instant) {
        for reason in self.state.take_reasons() {
            log::log!(reason.level, "{}", reason.text);
        }
        for restart in self.state.take_restarts() {
            self.history.restart(now, &restart);
            self.restarted(&restart);
        }
        for restarted in self.state.take_restarted() {
            self.history.restarted(&restarted);
            self.emit(Event::Restarted(restarted));
        }
        for placed in self.state.take_placed() {
            self.emit(Event::Placed(placed));
        }
        for carried in self.state.take_carried() {
            self.emit(Event::Carried(carried));
        }
        if let Some(hosts) = self.state.take_learned() {
            host_memory::learn(hosts);
        }
        for change in self.state.take_seat_changes() {
            self.emit(Event::Seat(change));
        }
        for line in self.state.take_notices() {
            let mut text = String::new();
            self.view.announce(&line, &mut text);
            self.emit(Event::Output(text));
        }
        for progress in self.state.take_progress() {
            self.history.progress();
            self.snapshots.reported(&progress);
            self.emit(Event::Progress(progress));
        }
        for reports in self.state.take_reports() {
            if !matches!(self.last, Last::Told) {
                self.emit(Event::Reports(reports));
            }
        }
        for stacks in self.state.take_stacks() {
            for asker in self.askers.drain(..) {
                // One that has lost its patience hears nothing.
                let _ = asker.send(stacks.clone());
            }
        }
        let status = self.state.status();
        if matches!(self.last, Last::Running) && status != self.status {
            self.status.clone_from(&status);
            self.emit(Event::Status(status));
        }
        for phase in self.state.take_phases() {
            self.history.phase(&phase);
            self.emit(Event::Phase(phase));
        }
        self.history.look(now, &self.state, self.snapshots.is_mute());
        if let (Last::Running, Some(outcome)) = (&self.last, self.state.outcome()) {
            self.last = Last::Draining(outcome.clone(), now + self.drain_timeout);
        }
        let Last::Draining(outcome, until) = &self.last else { return };
        // Of a node that fell silent nothing comes any more, though nobody has closed its connection.
        let comes = |(partition, open): (&u32, &usize)| *open > 0 && !self.state.is_lost(*partition);
        if self.logs.iter().any(comes) && now < *until {
            return;
        }
        let outcome = outcome.clone();
        self.last = Last::Told;
        let mut rest = String::new();
        for (partition, end) in std::mem::take(&mut self.output_ends) {
            let received = self.received.get(&(partition, end.rank)).copied().unwrap_or(0);
            let missing = end.bytes.saturating_sub(received);
            if missing > 0 {
                let notice = format!("[phalanx] {missing} more bytes of output are in {}", end.log_path);
                self.view.notice(end.rank, &notice, &mut rest);
            }
        }
        for (_, rank) in self.received.keys() {
            self.view.finish(*rank, &mut rest);
        }
        self.view.flush(&mut rest);
        if let JobOutcome::Failed(failure) = &outcome
            && let Some(rank) = failure.rank
        {
            self.view.failed(rank, &mut rest);
        }
        self.emit(Event::Output(rest));
        self.snapshots.keep(self.snapshot(now), true);
        self.emit(match outcome {
            JobOutcome::Finished(ranks) => Event::Finished(ranks),
            JobOutcome::Failed(failure) => Event::Failed(failure),
        });
    }
}

/// Milliseconds since 1970, as the driver has it.
#[expect(clippy::disallowed_methods, reason = "ranks are told it, whose hosts have other clocks")]
fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for JobHandler {
    fn drop(&mut self) {
        if !matches!(self.last, Last::Told) {
            self.snapshots.keep_unfinished(self.snapshot(Instant::now()));
        }
    }
}

impl Handler for JobHandler {
    type Command = Command;

    fn admits(&self, attempt: Attempt) -> bool {
        self.state.admits(attempt)
    }

    fn is_present(&self, attempt: Attempt) -> bool {
        attempt == self.state.attempt()
    }

    fn seat(&mut self, now: Instant, partition: u32, task: SparkTask, out: &mut Outbox) -> Seat {
        let seat = self.state.seat(now, partition, task, out);
        if seat == Seat::Inherited {
            // The logs of another node begin anew.
            self.received.retain(|(of, _), _| *of != partition);
        }
        seat
    }

    fn is_seated(&self, partition: u32, instance: u64) -> bool {
        self.state.is_seated(partition, instance)
    }

    fn seats(&self) -> u64 {
        self.state.seats()
    }

    fn spares(&mut self, waiting: usize) {
        self.state.spares_wait(waiting);
    }

    fn message(
        &mut self,
        now: Instant,
        partition: u32,
        attempt: Attempt,
        mut message: NodeMessage,
        out: &mut Outbox,
    ) {
        match &mut message {
            NodeMessage::Piece { request, piece } => {
                let piece = std::mem::replace(piece, Err(String::new()));
                self.reads.answered(partition, *request, piece);
            }
            NodeMessage::Done { output, .. } if attempt == self.state.attempt() => {
                self.output_ends.extend(output.iter().map(|end| (partition, end.clone())));
                self.reads.gone(partition);
            }
            NodeMessage::Notice(notice) if attempt == self.state.attempt() => {
                self.state.notice(now, unix_ms(), partition, notice.clone(), out);
            }
            _ => {}
        }
        self.state.message(now, partition, attempt, message, out);
    }

    fn disconnected(&mut self, now: Instant, partition: u32, _out: &mut Outbox) {
        self.state.disconnected(now, partition);
        self.reads.gone(partition);
    }

    fn logs_opened(&mut self, partition: u32) -> Vec<(u32, u64)> {
        *self.logs.entry(partition).or_default() += 1;
        let of_node = self.received.range((partition, 0)..=(partition, u32::MAX));
        of_node.map(|((_, rank), bytes)| (*rank, *bytes)).collect()
    }

    fn logs_closed(&mut self, partition: u32) {
        if let Some(open) = self.logs.get_mut(&partition) {
            *open = open.saturating_sub(1);
        }
    }

    fn output(&mut self, partition: u32, attempt: Attempt, rank: u32, offset: u64, bytes: &[u8]) {
        if !self.state.admits(attempt) {
            return;
        }
        let received = self.received.entry((partition, rank)).or_default();
        // After a reconnect a node may repeat what was on its way when the connection broke.
        let known = usize::try_from(received.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
        *received = (*received).max(offset + bytes.len() as u64);
        let new = &bytes[known..];
        let lines = new.iter().filter(|byte| **byte == b'\n').count();
        self.history.wrote(lines, new.len() as u64);
        let mut text = String::with_capacity(bytes.len() * 2);
        self.view.take(rank, new, &mut text);
        self.emit(Event::Output(text));
    }

    fn skip(&mut self, partition: u32, attempt: Attempt, rank: u32, resume_at: u64, notice: &str) {
        if !self.state.admits(attempt) {
            return;
        }
        let received = self.received.entry((partition, rank)).or_default();
        if resume_at <= *received {
            // Nothing is missing: all of that has arrived.
            return;
        }
        self.history.wrote(0, resume_at - *received);
        *received = resume_at;
        let mut text = String::new();
        self.view.notice(rank, notice, &mut text);
        self.emit(Event::Output(text));
    }

    fn takes_output(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < MAX_WAITING_OUTPUT_BYTES
    }

    fn result_begins(&mut self, rank: u32, attempt: Attempt) -> Result<Option<Opening>> {
        if !self.state.knows_rank(rank) {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("a result of rank {rank}, which the job doesn't have"),
            ));
        }
        Ok(self.is_present(attempt).then(|| self.results.opening(rank)))
    }

    fn result_lost(&mut self, now: Instant, rank: u32, why: &Error, out: &mut Outbox) {
        self.state.result_lost(now, rank, &why.to_string(), out);
    }

    fn command(&mut self, now: Instant, command: Command, out: &mut Outbox) {
        match command {
            Command::StageEnded(attempt, problem) => self.state.stage_ended(now, attempt, problem, out),
            Command::StageSeen(attempt, look) => self.state.stage_seen(now, attempt, look),
            Command::Decommissioned(tasks) => self.state.decommissioned(now, &tasks, out),
            Command::Stacks(answer) => {
                self.askers.push(answer);
                self.state.ask_for_stacks(now, out);
            }
            Command::Read(wanted, answer) => match self.state.node_that_runs(wanted.rank) {
                Some(partition) => {
                    if let Some(request) = self.reads.ask(now, partition, answer) {
                        out.send(partition, HubMessage::Read { request, wanted });
                    }
                }
                None => {
                    refuse(&answer, format!("rank {} is not running on any host at the moment", wanted.rank))
                }
            },
            Command::Snapshot(made) => {
                self.snapshots.keep(self.snapshot(now), false);
                // One that has lost its patience hears nothing.
                let _ = made.send(());
            }
            Command::Stop(reason) => self.state.cancel(now, &reason, out),
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) -> Option<Instant> {
        let next = self.state.tick(now, out);
        let mut text = String::new();
        let shown_at = self.view.tick(now, &mut text);
        self.emit(Event::Output(text));
        self.advance(now);
        match &self.last {
            Last::Draining(_, until) => Some(shown_at.map_or(*until, |at| at.min(*until))),
            Last::Running => next.into_iter().chain(shown_at).min(),
            Last::Told => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use phalanx_types::Deadline;

    use super::*;
    use crate::driver::event_queue::{EventReceiver, event_queue};

    /// The handler of a job of one rank; what it tells, and how many bytes of output wait there.
    fn handler_in(folder: &Path) -> (JobHandler, EventReceiver, Arc<AtomicUsize>) {
        let (sender, receiver) = event_queue();
        let waiting = Arc::<AtomicUsize>::default();
        let present = Present::first();
        let results = Results::in_folder(folder.to_path_buf(), present.clone());
        let job = Job::new("job", "t", 1, 1).unwrap();
        let tails = Arc::new(LogTails::new(1));
        let snapshots = Arc::new(Snapshots::of(&job));
        let handler = JobHandler::new(job, sender, Arc::clone(&waiting), present, results, tails, snapshots);
        (handler, receiver, waiting)
    }

    #[test]
    fn no_output_is_taken_while_4_mib_of_it_wait_for_the_caller() {
        let folder = phalanx_testkit::temp_dir("handler");
        let (mut handler, _receiver, waiting) = handler_in(folder.path());
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        let mut taken = 0;
        while handler.takes_output() {
            handler.output(0, Attempt::first(), 0, taken, &line);
            taken += line.len() as u64;
        }
        let shown = line.len() + "[rank 0] ".len();
        assert_eq!(waiting.load(Ordering::Acquire), (4_usize << 20).div_ceil(shown) * shown, "DRIVER-5");
    }

    #[test]
    fn what_comes_again_is_shown_once_be_it_output_or_a_skip() {
        let folder = phalanx_testkit::temp_dir("handler");
        let (mut handler, receiver, _) = handler_in(folder.path());
        handler.output(0, Attempt::first(), 0, 0, b"one\n");
        handler.skip(0, Attempt::first(), 0, 100, "some skipped");
        for _ in 0..2 {
            handler.output(0, Attempt::first(), 0, 0, b"one\n");
            handler.skip(0, Attempt::first(), 0, 100, "some skipped");
            handler.output(0, Attempt::first(), 0, 98, b"..two\n");
        }
        assert_eq!(handler.logs_opened(0), [(0, 104)]);
        drop(handler);
        let mut shown = String::new();
        while let Ok(Some(Event::Output(text))) = receiver.next(Deadline::never()) {
            shown.push_str(&text);
        }
        assert_eq!(shown, "[rank 0] one\n[rank 0] some skipped\n[rank 0] two\n", "DRIVER-6");
    }
}
