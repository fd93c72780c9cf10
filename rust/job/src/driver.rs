//! The driver's end of one job: the hub, the course of the job, the live view and the results.
//!
//! DRIVER-1: the outcome is the last event, after all output that came in time. DRIVER-2: memory for output is bounded
//! by [`MAX_WAITING_OUTPUT_BYTES`] and the hub's buffers: what a slow reader doesn't take waits in files on the nodes.
//! DRIVER-3: closing stops a job that still runs and leaves no thread, socket or file.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use phalanx_rendezvous::{Handler, Hub, HubOptions, Outbox, Token, wire};
use phalanx_types::message::{NodeMessage, NodeReport, OutputEnd};
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Deadline, Error, ErrorKind, Failure, Job, RankReport, Result};

use crate::course::{Course, Outcome, Phase, Report, Restart};
use crate::live::LiveView;

/// How much output may wait for the reader.
pub const MAX_WAITING_OUTPUT_BYTES: usize = 4 << 20;

/// What happens at the driver, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Whole, prefixed lines to show.
    Output(String),
    /// The job or a rank got somewhere.
    Phase(Phase),
    /// Where the job is, in words.
    Status(String),
    /// A rank told by `phalanx.report` how far it is.
    Report(Report),
    /// A task was lost, and the ranks are to start again: end the present Spark stage, and submit another whose nodes
    /// begin with this attempt, for the same hub. Where the tasks are alive the ranks start again without this.
    Resubmit {
        /// [`crate::NodeOptions::attempt`] of the new stage's nodes.
        attempt: u32,
    },
    /// Every rank ended well, and every result is here: a line for each rank. The last event.
    Finished(Vec<RankReport>),
    /// The job failed. The last event.
    Failed(Box<Failure>),
}

/// Where the hub listens.
#[derive(Debug, Clone)]
pub struct DriverOptions {
    /// The address to bind; empty for the one that `advertise` resolves to.
    pub bind: String,
    /// The host name or address under which nodes reach the driver.
    pub advertise: String,
    /// Where results wait for the caller: a folder that ends with the application, also when its driver is killed.
    pub work_dir: PathBuf,
}

/// The driver's end of one job.
pub struct DriverJob {
    hub: Hub<Command>,
    events: Receiver<Event>,
    waiting: Arc<AtomicUsize>,
    results: tempfile::TempDir,
    token: Token,
}

enum Command {
    NodeReport(Box<NodeReport>),
    StageEnded(u32, Option<String>),
    Stop(String),
    Stacks(Sender<Vec<RankStacks>>),
    Logs(u32, Sender<String>),
}

/// What the ranks' threads are doing, once it is known.
#[derive(Debug)]
pub struct StacksAnswer(Receiver<Vec<RankStacks>>);

impl StacksAnswer {
    /// The stacks of the ranks that run; `None` at the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the hub was closed before they were there.
    pub fn wait(&self, deadline: Deadline) -> Result<Option<Vec<RankStacks>>> {
        next_of(&self.0, deadline)
    }
}

/// What comes next; `None` at the deadline.
fn next_of<T>(channel: &Receiver<T>, deadline: Deadline) -> Result<Option<T>> {
    let next = match deadline.instant() {
        Some(at) => match channel.recv_deadline(at) {
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => return Ok(None),
            other => other.ok(),
        },
        None => channel.recv().ok(),
    };
    next.map(Some).ok_or_else(|| Error::new(ErrorKind::Closed, "the job is over"))
}

impl DriverJob {
    /// Opens the hub of `job`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a job that can't work, [`ErrorKind::Io`] if the hub can't listen.
    pub fn open(job: Job, options: &DriverOptions) -> Result<DriverJob> {
        job.check()?;
        let token = wire::random_token()?;
        let results = tempfile::Builder::new()
            .prefix("phalanx-results-")
            .tempdir_in(&options.work_dir)
            .map_err(|e| Error::io("make a folder for the results", &e))?;
        let (sender, events) = crossbeam_channel::unbounded();
        let waiting = Arc::new(AtomicUsize::new(0));
        let hub_options = HubOptions {
            bind: options.bind.clone(),
            advertise: options.advertise.clone(),
            job: job.id.clone(),
            token,
        };
        let handler = JobHandler {
            drain_timeout: job.logs.drain_timeout,
            course: Course::new(job, Instant::now()),
            events: sender,
            waiting: Arc::clone(&waiting),
            view: LiveView::default(),
            received: BTreeMap::new(),
            logs: BTreeMap::new(),
            output_ends: Vec::new(),
            askers: Vec::new(),
            results: results.path().to_path_buf(),
            status: String::new(),
            last: Last::Running,
        };
        let hub = Hub::open(hub_options, handler)?;
        Ok(DriverJob { hub, events, waiting, results, token })
    }

    /// Where nodes reach the hub: `host:port`.
    pub fn address(&self) -> &str {
        self.hub.address()
    }

    /// The job's secret.
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// The next event; `None` at the deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] after the last event.
    pub fn next(&self, deadline: Deadline) -> Result<Option<Event>> {
        let Some(event) = next_of(&self.events, deadline)? else { return Ok(None) };
        if let Event::Output(text) = &event {
            let before = self.waiting.fetch_sub(text.len(), Ordering::AcqRel);
            if before >= MAX_WAITING_OUTPUT_BYTES && before - text.len() < MAX_WAITING_OUTPUT_BYTES {
                self.hub.wake();
            }
        }
        Ok(Some(event))
    }

    /// The file with what a rank left as its result, if it has arrived whole.
    pub fn result_path(&self, rank: u32) -> Option<PathBuf> {
        let path = whole(self.results.path(), rank);
        path.exists().then_some(path)
    }

    /// Takes what [`crate::run_node`] returned on a node that couldn't reach the hub: its report and results.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if it isn't that; [`ErrorKind::Io`] if a result can't be kept.
    pub fn node_report(&self, bytes: &[u8]) -> Result<()> {
        let (report, results) = crate::results::unpack_report(bytes)?;
        for (rank, result) in results {
            let (partial, path) = (partial(self.results.path(), rank), whole(self.results.path(), rank));
            std::fs::write(&partial, result)
                .and_then(|()| std::fs::rename(&partial, &path))
                .map_err(|e| Error::io(format!("keep the result of rank {rank}"), &e))?;
        }
        self.hub.command(Command::NodeReport(Box::new(report)));
        Ok(())
    }

    /// The Spark stage that was submitted for `attempt` (0, or what [`Event::Resubmit`] said) is over: well, or with
    /// this message.
    pub fn stage_ended(&self, attempt: u32, problem: Option<String>) {
        self.hub.command(Command::StageEnded(attempt, problem));
    }

    /// Asks what the ranks' threads are doing. The answer comes within seconds; the ranks go on.
    pub fn ask_for_stacks(&self) -> StacksAnswer {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.hub.command(Command::Stacks(answer));
        StacksAnswer(answered)
    }

    /// The newest whole lines of a rank's output that have come here; of a progress bar its last state. Empty for a rank
    /// that the job doesn't have.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the hub doesn't serve any more.
    pub fn logs(&self, rank: u32) -> Result<String> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.hub.command(Command::Logs(rank, answer));
        next_of(&answered, Deadline::never()).map(Option::unwrap_or_default)
    }

    /// Cancels the job. The outcome tells when it is over.
    pub fn stop(&self, reason: &str) {
        self.hub.command(Command::Stop(reason.to_string()));
    }

    /// Frees everything. A job that still runs loses its hub and is stopped by its nodes.
    pub fn close(&mut self) {
        self.hub.close();
    }
}

/// Between the outcome and its event lies the rest of the output.
enum Last {
    Running,
    /// The outcome is known; output may still come until then.
    Draining(Outcome, Instant),
    Told,
}

/// Where a rank's result is once it is whole.
fn whole(results: &Path, rank: u32) -> PathBuf {
    results.join(format!("rank-{rank}"))
}

/// Where it is until then.
fn partial(results: &Path, rank: u32) -> PathBuf {
    results.join(format!("rank-{rank}.part"))
}

struct JobHandler {
    drain_timeout: Duration,
    course: Course,
    events: Sender<Event>,
    waiting: Arc<AtomicUsize>,
    view: LiveView,
    /// How much of each rank's output has arrived.
    received: BTreeMap<u32, u64>,
    /// How many connections for output each partition has open.
    logs: BTreeMap<u32, usize>,
    output_ends: Vec<OutputEnd>,
    /// Who waits for stacks.
    askers: Vec<Sender<Vec<RankStacks>>>,
    results: PathBuf,
    /// As it was told last.
    status: String,
    last: Last,
}

impl JobHandler {
    fn tell(&self, event: Event) {
        if let Event::Output(text) = &event {
            if text.is_empty() {
                return;
            }
            self.waiting.fetch_add(text.len(), Ordering::AcqRel);
        }
        // The receiver lives as long as the hub.
        let _ = self.events.send(event);
    }

    /// Forgets what the attempt before left: only the last one's results count.
    fn restarted(&mut self, restart: &Restart) {
        self.output_ends.clear();
        let mut text = String::new();
        for rank in self.received.keys() {
            self.view.finish(*rank, &mut text);
        }
        for rank in self.course.ranks() {
            for path in [partial(&self.results, rank), whole(&self.results, rank)] {
                // Most ranks left none.
                let _ = std::fs::remove_file(path);
            }
        }
        self.view.announce(&restart.line, &mut text);
        self.tell(Event::Output(text));
        if !restart.in_place {
            // The logs of the new nodes begin anew.
            self.received.clear();
            self.tell(Event::Resubmit { attempt: restart.attempt });
        }
    }

    /// Tells what is new, and the outcome once the output is in.
    fn advance(&mut self, now: Instant) {
        for restart in self.course.take_restarts() {
            self.restarted(&restart);
        }
        for line in self.course.take_notices() {
            let mut text = String::new();
            self.view.announce(&line, &mut text);
            self.tell(Event::Output(text));
        }
        for report in self.course.take_reports() {
            self.tell(Event::Report(report));
        }
        for stacks in self.course.take_stacks() {
            for asker in self.askers.drain(..) {
                // One that has lost its patience hears nothing.
                let _ = asker.send(stacks.clone());
            }
        }
        let status = self.course.status();
        if matches!(self.last, Last::Running) && status != self.status {
            self.status.clone_from(&status);
            self.tell(Event::Status(status));
        }
        for phase in self.course.take_phases() {
            self.tell(Event::Phase(phase));
        }
        if let (Last::Running, Some(outcome)) = (&self.last, self.course.outcome()) {
            self.last = Last::Draining(outcome.clone(), now + self.drain_timeout);
        }
        let Last::Draining(outcome, until) = &self.last else { return };
        if self.logs.values().any(|open| *open > 0) && now < *until {
            return;
        }
        let outcome = outcome.clone();
        self.last = Last::Told;
        let mut rest = String::new();
        for end in std::mem::take(&mut self.output_ends) {
            let missing = end.bytes.saturating_sub(self.received.get(&end.rank).copied().unwrap_or(0));
            if missing > 0 {
                let notice = format!("[phalanx] {missing} more bytes of output are in {}", end.log_path);
                self.view.notice(end.rank, &notice, &mut rest);
            }
        }
        for rank in self.received.keys() {
            self.view.finish(*rank, &mut rest);
        }
        self.tell(Event::Output(rest));
        self.tell(match outcome {
            Outcome::Finished(ranks) => Event::Finished(ranks),
            Outcome::Failed(failure) => Event::Failed(failure),
        });
    }
}

impl Handler for JobHandler {
    type Command = Command;

    fn admits(&self, attempt: u32) -> bool {
        self.course.admits(attempt)
    }

    fn message(
        &mut self,
        now: Instant,
        partition: u32,
        attempt: u32,
        message: NodeMessage,
        out: &mut Outbox,
    ) {
        if let NodeMessage::Done { output, .. } = &message
            && attempt == self.course.attempt()
        {
            self.output_ends.extend(output.iter().cloned());
        }
        self.course.message(now, partition, attempt, message, out);
    }

    fn disconnected(&mut self, now: Instant, partition: u32, _out: &mut Outbox) {
        self.course.disconnected(now, partition);
    }

    fn logs_opened(&mut self, partition: u32) -> Vec<(u32, u64)> {
        *self.logs.entry(partition).or_default() += 1;
        self.received.iter().map(|(rank, bytes)| (*rank, *bytes)).collect()
    }

    fn logs_closed(&mut self, partition: u32) {
        if let Some(open) = self.logs.get_mut(&partition) {
            *open = open.saturating_sub(1);
        }
    }

    fn output(&mut self, attempt: u32, rank: u32, offset: u64, bytes: &[u8]) {
        if !self.course.admits(attempt) {
            return;
        }
        let received = self.received.entry(rank).or_default();
        // After a reconnect a node may repeat what was on its way when the connection broke.
        let known = usize::try_from(received.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
        *received = (*received).max(offset + bytes.len() as u64);
        let mut text = String::with_capacity(bytes.len() * 2);
        self.view.take(rank, &bytes[known..], &mut text);
        self.tell(Event::Output(text));
    }

    fn skip(&mut self, attempt: u32, rank: u32, resume_at: u64, notice: &str) {
        if !self.course.admits(attempt) {
            return;
        }
        let received = self.received.entry(rank).or_default();
        *received = (*received).max(resume_at);
        let mut text = String::new();
        self.view.notice(rank, notice, &mut text);
        self.tell(Event::Output(text));
    }

    fn takes_output(&self) -> bool {
        self.waiting.load(Ordering::Acquire) < MAX_WAITING_OUTPUT_BYTES
    }

    fn result_file(&mut self, rank: u32) -> Result<File> {
        if !self.course.knows_rank(rank) {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("a result of rank {rank}, which the job doesn't have"),
            ));
        }
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(partial(&self.results, rank))
            .map_err(|e| Error::io(format!("store the result of rank {rank}"), &e))
    }

    fn result_arrived(&mut self, now: Instant, rank: u32, out: &mut Outbox) {
        if let Err(e) = std::fs::rename(partial(&self.results, rank), whole(&self.results, rank)) {
            self.result_lost(now, rank, &Error::io("name its file", &e), out);
        }
    }

    fn result_lost(&mut self, now: Instant, rank: u32, why: &Error, out: &mut Outbox) {
        // What there is of it may be what fills the disk.
        let _ = std::fs::remove_file(partial(&self.results, rank));
        self.course.result_lost(now, rank, &why.to_string(), out);
    }

    fn command(&mut self, now: Instant, command: Command, out: &mut Outbox) {
        match command {
            Command::NodeReport(report) => self.course.node_report(now, *report, out),
            Command::StageEnded(attempt, problem) => self.course.stage_ended(now, attempt, problem, out),
            Command::Stacks(answer) => {
                self.askers.push(answer);
                self.course.ask_for_stacks(now, out);
            }
            // Nobody waits for it any more when the driver closes.
            Command::Logs(rank, answer) => drop(answer.send(self.view.newest(rank))),
            Command::Stop(reason) => self.course.cancel(now, &reason, out),
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Outbox) -> Option<Instant> {
        let next = self.course.tick(now, out);
        self.advance(now);
        match &self.last {
            Last::Draining(_, until) => Some(*until),
            Last::Running => next,
            Last::Told => None,
        }
    }
}
