//! A node's end of one job: joins, starts its ranks through the guard, watches them, reports, ends them.
//!
//! NODE-1: when [`run_node`] returns, however it does, no process of its ranks is left (as far as the guard can end
//! them), no thread, no socket, and only the log files on disk. NODE-2: a failure of a rank is reported to the hub
//! before anything is waited for. NODE-3: a node that loses its driver ends its ranks. NODE-5: attempts share nothing but
//! the logs: each has a guard, a store and folders of its own.

mod starting;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select};
use phalanx_rendezvous::HubAddress;
use phalanx_rendezvous::store::StoreServer;
use phalanx_supervisor::{ExitHow, Guard, GuardEvent, OomWatch, RankLog, stacks_signal};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Error, ErrorKind, Job, Policy, RankState, Result};

use crate::activity::{Asked, told};
use crate::board::Board;
use crate::control::INTERRUPT_EVERY;
use crate::folder::Folder;
use crate::gather::{Gathered, Gathering, gather};
use crate::guarding::guard_for;
use crate::host::NodeHost;
use crate::link::Link;
use crate::meter::Meter;
use crate::parting::Ended;
use crate::ranks::{Ending, Rank, Stopped};
use crate::relay::Relay;
use crate::results::Uploads;

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

/// What one node of a job needs to know.
pub struct NodeOptions {
    /// The job.
    pub job: Job,
    /// What the ranks execute; each finds it in the file that `PHALANX_PAYLOAD` names.
    pub payload: Vec<u8>,
    /// The hub.
    pub hub: HubAddress,
    /// The task's partition.
    pub partition: u32,
    /// The attempt that the task begins with: 0, or what [`crate::Event::Resubmit`] said.
    pub attempt: u32,
    /// The host's name: equal for tasks on the same host.
    pub host: String,
    /// The GPUs that the task was given.
    pub gpus: Vec<String>,
    /// The program that each rank runs, and its arguments.
    pub program: Vec<String>,
    /// The program of a warm pool for such ranks; empty if there is none, and they start cold.
    pub pool: Vec<String>,
    /// Whether the pool is that of all children of this process's parent, and ends with that.
    pub shares_pool: bool,
    /// Variables for the ranks beyond those that this process has and those of the placement.
    pub env: BTreeMap<String, String>,
    /// Where logs and the ranks' private files go: Spark's local directory.
    pub work_dir: PathBuf,
    /// The `phalanx-guard` program.
    pub guard: PathBuf,
}

/// Runs the node of one partition until its ranks have ended.
///
/// Returns nothing when the hub has everything, else a report for [`crate::DriverJob::node_report`]. That a rank failed
/// is no error of the node.
///
/// # Errors
/// If the node could not do its part; its ranks, if any ran, are ended.
pub fn run_node(options: &NodeOptions, host: &mut dyn NodeHost) -> Result<Vec<u8>> {
    let mut kept = Kept { folder: None, logs: BTreeMap::new(), meter: Meter::new() };
    let mut attempt = options.attempt;
    loop {
        match run_attempt(options, attempt, &mut kept, host)? {
            Ended::Over(report) => return Ok(report),
            Ended::Again { attempt: next, reason } => {
                log::info!(
                    "job {}: partition {} starts its ranks again: {reason}",
                    options.job.id,
                    options.partition
                );
                for log in kept.logs.values() {
                    log.resume(&format!("restart {next}: {reason}"));
                }
                attempt = next;
            }
        }
    }
}

/// What a node keeps from one attempt to the next.
struct Kept {
    /// Outlives the attempts: the ranks' files are removed when nothing uses them any more, however this ends.
    folder: Option<Folder>,
    logs: BTreeMap<u32, Arc<RankLog>>,
    meter: Meter,
}

/// From joining to the hub's word on what follows.
fn run_attempt(
    options: &NodeOptions,
    attempt: u32,
    kept: &mut Kept,
    host: &mut dyn NodeHost,
) -> Result<Ended> {
    let began = Instant::now();
    let Gathered { placement, store, mut link, through_spark } = match gather(options, attempt, host)? {
        Gathering::Placed(gathered) => *gathered,
        Gathering::Over => return Ok(Ended::Over(Vec::new())),
        Gathering::Again(attempt) => return Ok(Ended::Again { attempt, reason: String::new() }),
    };
    let board = through_spark.then(|| Board::at(placement.store));
    kept.meter.placed(began);
    if kept.folder.is_none() {
        let made = Folder::make(&options.work_dir, &options.job.id, options.partition, options.attempt);
        kept.folder = Some(made.map_err(|e| link.fails(e))?);
    }
    // The store listens before any rank starts, else the first connects in vain and backs off.
    let serves_store = placement.serves_store;
    let _store = if serves_store {
        let store = StoreServer::start(store, Some(placement.peers.clone()));
        Some(store.map_err(|e| link.fails(e))?)
    } else {
        drop(store);
        None
    };
    let guard = guard_for(options, &placement, &mut link, host).map_err(|e| link.fails(e))?;
    let mut node = Node::start(options, attempt, kept, guard, placement, link)?.with(board);
    node.watch(host);
    node.leave_board(serves_store, host)?;
    node.finish(host)
}

/// A line of JSON from a rank.
type Note = (u32, serde_json::Map<String, serde_json::Value>);

/// One attempt of a node.
pub(crate) struct Node<'a> {
    pub(crate) options: &'a NodeOptions,
    pub(crate) attempt: u32,
    guard: Guard,
    pub(crate) link: Link<'a>,
    /// Where tasks that met through Spark tell one another of failures.
    board: Option<Board>,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) relay: Option<Relay>,
    notes: Receiver<Note>,
    notes_sender: Sender<Note>,
    uploads: Uploads,
    /// Threads say here that there is something to look at: a log or an upload has ended.
    wake: Sender<()>,
    woken: Receiver<()>,
    meter: &'a mut Meter,
    oom: OomWatch,
    stopped: Option<Stopped>,
    pub(crate) problem: Option<String>,
    /// Why the host wanted the end.
    pub(crate) interrupted: Option<String>,
    empty: bool,
    /// A request of the hub's for the ranks' stacks.
    asked: Option<Asked>,
    tell_activity_at: Instant,
}

impl<'a> Node<'a> {
    /// Until every rank has ended, nothing of them is left, and their results are at the hub.
    fn watch(&mut self, host: &mut dyn NodeHost) {
        while !self.empty || self.ranks.iter().any(|rank| !rank.reported) || self.uploads.pending() {
            // After its last event the guard is of no more interest.
            let guard = if self.empty { crossbeam_channel::never() } else { self.guard.events().clone() };
            let (orders, notes, woken) = (self.link.orders(), self.notes.clone(), self.woken.clone());
            select! {
                recv(guard) -> event => match event {
                    Ok(event) => self.guard_event(event),
                    Err(_) => self.guard_gone("it closed its connection"),
                },
                recv(orders) -> order => match order {
                    Ok(HubMessage::Stop { reason }) => self.stop(&reason),
                    Ok(HubMessage::Stacks { request }) => {
                        let signal = |rank| self.guard.signal(rank, stacks_signal());
                        self.asked = Some(Asked::of(request, &self.ranks, signal));
                    }
                    // A line that has broken is mended below.
                    Ok(_) | Err(_) => {}
                },
                recv(notes) -> note => if let Ok(note) = note { self.note(&note); },
                recv(woken) -> _ => {}
                default(INTERRUPT_EVERY) => {}
            }
            self.report_ended(Instant::now());
            self.look_at_board();
            self.meter.tell(host, || written(&self.ranks));
            self.heed(host);
            self.tell_activity(Instant::now());
        }
        self.meter.tell_all(host, written(&self.ranks));
        if let Some(problem) = self.uploads.finish() {
            self.problem.get_or_insert(problem);
        }
    }

    /// Sees to the line to the hub, and to what the host wants.
    fn heed(&mut self, host: &mut dyn NodeHost) {
        if let Some(reason) = host.interrupted() {
            self.stop(&reason);
            self.interrupted.get_or_insert(reason);
        }
        self.tend_link();
    }

    fn guard_event(&mut self, event: GuardEvent) {
        match event {
            GuardEvent::Started { rank, pid, at } => {
                if let Some(rank) = self.ranks.iter_mut().find(|r| r.rank == rank) {
                    rank.activity.started(pid);
                }
                self.meter.rank_started(at, self.attempt);
                self.link.tell(at, NodeMessage::RankStarted { rank, pid, age_us: 0 });
            }
            GuardEvent::NotStarted { rank, reason, at } => {
                if let Some(rank) = self.ranks.iter_mut().find(|r| r.rank == rank) {
                    rank.not_started = Some((reason, at));
                }
            }
            GuardEvent::Ended { rank, how, by_itself, at } => {
                if let Some(rank) = self.ranks.iter_mut().find(|r| r.rank == rank) {
                    rank.exit = Some(Ending { how, by_itself, at });
                }
            }
            GuardEvent::Empty => self.empty = true,
            GuardEvent::Gone { reason } => self.guard_gone(&reason),
        }
        let over = self.ranks.iter().all(|rank| rank.over_at().is_some());
        if over && !self.empty {
            // Ends what the ranks left behind; answers with Empty.
            self.guard.stop();
        }
    }

    fn guard_gone(&mut self, reason: &str) {
        self.empty = true;
        let why = format!(
            "phalanx-guard, the process above the ranks, has ended ({reason}), and the ranks with it"
        );
        for rank in self.ranks.iter_mut().filter(|rank| rank.over_at().is_none()) {
            rank.exit = Some(Ending { how: ExitHow::Signal(9), by_itself: false, at: Instant::now() });
        }
        self.problem.get_or_insert(why);
    }

    fn stop(&mut self, reason: &str) {
        if self.stopped.is_none() {
            log::info!(
                "job {}: partition {} ends its ranks: {reason}",
                self.options.job.id,
                self.options.partition
            );
            self.stopped = Some(Stopped::now());
            self.guard.stop();
        }
    }

    /// Tells what the ranks do, from time to time, and what they were asked for, when it is there.
    fn tell_activity(&mut self, now: Instant) {
        if let Some((request, ranks)) = self.asked.as_mut().and_then(|asked| asked.answer(now)) {
            self.asked = None;
            self.link.send(&NodeMessage::Stacks { request, ranks });
        }
        if now >= self.tell_activity_at {
            self.tell_activity_at = now + tell_activity_every(&self.options.job.policy);
            let ranks: Vec<_> = self.ranks.iter().filter(|rank| rank.over_at().is_none()).map(told).collect();
            if self.stopped.is_none() && !ranks.is_empty() {
                self.link.send(&NodeMessage::Activity { ranks });
            }
        }
    }

    fn note(&mut self, (rank, note): &Note) {
        let Some(of) = self.ranks.iter_mut().find(|r| r.rank == *rank) else { return };
        if of.activity.take(note) {
            self.tell_activity_at = self.tell_activity_at.min(Instant::now() + REPORT_EVERY);
        }
        if let Some(error) = note.get("error") {
            of.noted_error = serde_json::from_value(error.clone()).ok();
        }
        if let Some(name) = note.get("phase").and_then(|name| name.as_str()) {
            let (name, nth) = (name.chars().take(80).collect(), of.phases);
            of.phases += 1;
            self.link.tell(Instant::now(), NodeMessage::Phase { rank: *rank, name, nth, age_us: 0 });
        }
        if let Some(why) = note.get("cold").and_then(|why| why.as_str()) {
            log::info!("job {}: rank {rank} starts anew, cold: {why}", self.options.job.id);
        }
    }

    /// Reports the ranks that have ended and whose output is in (or won't come any more).
    fn report_ended(&mut self, now: Instant) {
        for i in 0..self.ranks.len() {
            let rank = &self.ranks[i];
            let Some(at) = rank.over_at() else { continue };
            if rank.reported || !(rank.log.finished() || now >= at + OUTPUT_GRACE) {
                continue;
            }
            self.ranks[i].reported = true;
            while let Ok(note) = self.notes.try_recv() {
                self.note(&note);
            }
            let (end, ended_at) = self.ranks[i].end(&self.options.host, self.stopped, &self.oom);
            if self.ranks[i].exit.is_some() {
                self.meter.rank_ended(end.failure().is_some());
            }
            if end.state == RankState::Finished {
                self.upload(i);
            }
            if let Some(board) =
                self.board.as_mut().filter(|_| !self.link.reached() && end.failure().is_some())
            {
                board.post(&end, ended_at);
                // No hub says so, and the board may not answer in time.
                self.stop(&format!("rank {} {}", end.rank, end.state.describe()));
            }
            self.link.tell(ended_at, NodeMessage::RankEnded { end: Box::new(end) });
        }
    }

    /// Heeds a failure that a node without the hub has posted: tells the hub, if it is there, and ends the ranks.
    fn look_at_board(&mut self) {
        let Some((end, at)) = self.board.as_mut().and_then(|board| board.look(Instant::now())) else {
            return;
        };
        let why = format!("rank {} {}", end.rank, end.state.describe());
        if !self.ranks.iter().any(|rank| rank.rank == end.rank) {
            self.link.tell(at, NodeMessage::RankEnded { end: Box::new(end) });
        }
        self.stop(&why);
    }

    /// BOARD-3: says that this node is over; the one of the store stays until all others are.
    fn leave_board(&mut self, serves_store: bool, host: &mut dyn NodeHost) -> Result<()> {
        let Some(board) = self.board.as_mut() else { return Ok(()) };
        if let Err(problem) = board.say_over(self.options.partition)
            && !self.link.reached()
        {
            return Err(Error::new(ErrorKind::Unreachable, problem));
        }
        while serves_store
            && self.interrupted.is_none()
            && !self.board.as_mut().is_some_and(|board| board.all_over(self.options.job.tasks))
        {
            self.heed(host);
            std::thread::sleep(INTERRUPT_EVERY);
        }
        Ok(())
    }

    fn upload(&mut self, i: usize) {
        let (rank, path) = (self.ranks[i].rank, self.ranks[i].dir.join("result"));
        if !self.link.reached() || !path.exists() {
            return;
        }
        if let Err(e) = self.uploads.start(rank, path) {
            self.problem.get_or_insert(e.to_string());
        }
    }

    /// Sees to the line to the hub; ends the ranks if it is past mending.
    pub(crate) fn tend_link(&mut self) {
        if self.link.tend() {
            self.relay.iter().for_each(Relay::renew);
            self.uploads.renew();
        }
        if let Some(why) = self.link.given_up().map(str::to_string) {
            self.problem.get_or_insert_with(|| why.clone());
            self.uploads.abandon();
            self.stop(&why);
        }
    }
}

/// Lines and bytes that the ranks have written so far.
fn written(ranks: &[Rank]) -> (u64, u64) {
    ranks.iter().fold((0, 0), |(lines, bytes), rank| (lines + rank.log.lines(), bytes + rank.log.end()))
}
