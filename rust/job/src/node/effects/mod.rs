//! What the machine's decisions come to: each action is carried out here, by a helper where it may take time.

mod launching;
mod preparing;
mod reporting;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender};
use phalanx_supervisor::{GuardEvent, OomWatch, PipeReader, stacks_signal};
use phalanx_types::contract::FILE_RESULT;
use phalanx_types::message::{NodeMessage, OutputTotal};
use phalanx_types::rank_file::PieceWanted;
use phalanx_types::{Attempt, Carrier, NodePlacement, RankNotice, Result};

use crate::node::helpers::guardian::Guardian;
use crate::node::helpers::helper::Helper;
use crate::node::helpers::notice_command::NoticeCommand;
use crate::node::helpers::pieces::{self, FilesOf, Reading};
use crate::node::helpers::results::Uploads;
use crate::node::helpers::stacks::{StacksWanted, Writer, stacks};
use crate::node::kept::Kept;
use crate::node::line::{Heard, Line};
use crate::node::machine::{Action, Event};
use crate::node::metrics::Metrics;
use crate::node::news::{Made, News};
use crate::node::options::Options;
use crate::node::output::executor_log::ExecutorLogCopy;
use crate::node::output::relay::Relay;
use crate::node::process::Process;
use crate::node::rank::Rank;
use crate::node::rank::evidence::Leftovers;
use crate::node::rank::frozen::Frozen;
use crate::node::setup::store::{NodeStore, StoreSocket};

/// All that an attempt of a node has. Dropping it ends what is left of it.
pub(crate) struct Effects<'scope, 'env> {
    options: &'env Options<'env>,
    attempt: Attempt,
    /// Why there is another attempt than the first, until the logs say so.
    why: Option<String>,
    scope: &'scope Scope<'scope, 'env>,
    kept: &'env mut Option<Kept>,
    metrics: &'env mut Metrics,
    process: &'env mut Process,
    began: Instant,
    /// The first that goes: what was told over it is written at once.
    line: Line,
    news: Receiver<News>,
    tell: Sender<News>,
    /// This host's address on the way to the hub, where that is direct.
    direct_address: Option<IpAddr>,
    socket: Option<StoreSocket>,
    placement: Option<Box<NodePlacement>>,
    store: Option<NodeStore>,
    made: Option<Box<Made>>,
    /// Tells helpers that what they do is not needed any more.
    is_ending: Arc<AtomicBool>,
    guardian: Option<Guardian>,
    guard_events: Receiver<GuardEvent>,
    ranks: BTreeMap<u32, Rank>,
    frozen: Frozen,
    /// The ranks that failed, and how, for the executor's log.
    failed: Vec<(u32, String)>,
    relay: Option<Relay>,
    executor_log: Option<ExecutorLogCopy>,
    uploads: Uploads,
    oom: OomWatch,
    /// When the ranks are looked at next.
    observe_at: Instant,
    /// A rank that was to be warm starts cold, and why has been said (NODE-50).
    said_cold: bool,
    evidence: Option<Helper<Leftovers>>,
    stacks: Option<Helper<StacksWanted>>,
    pieces: Option<Helper<Reading>>,
    carriers: Option<Helper<Carrier>>,
    closing: Option<Helper<Vec<PipeReader>>>,
    notice_command: Option<NoticeCommand>,
}

/// How many carriers wait for their notes: the hub tells of each again.
const MOST_CARRIERS: usize = 64;

impl<'scope, 'env> Effects<'scope, 'env> {
    /// Begins to connect to the hub.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn new(
        options: &'env Options<'env>,
        attempt: Attempt,
        why: Option<String>,
        scope: &'scope Scope<'scope, 'env>,
        kept: &'env mut Option<Kept>,
        metrics: &'env mut Metrics,
        process: &'env mut Process,
    ) -> Result<Effects<'scope, 'env>> {
        let (tell, news) = crossbeam_channel::unbounded();
        let heard = tell.clone();
        let ear = Box::new(move |heard_now| drop(heard.send(News::Event(Event::Line(heard_now)))));
        Ok(Effects {
            line: Line::open(options, attempt, ear)?,
            uploads: Uploads::to(options.ways.clone(), attempt, tell.clone()),
            options,
            attempt,
            why,
            scope,
            kept,
            metrics,
            process,
            began: Instant::now(),
            news,
            tell,
            direct_address: None,
            socket: None,
            placement: None,
            store: None,
            made: None,
            is_ending: Arc::default(),
            guardian: None,
            guard_events: crossbeam_channel::never(),
            ranks: BTreeMap::new(),
            frozen: Frozen::default(),
            failed: Vec::new(),
            relay: None,
            executor_log: None,
            oom: OomWatch::new(),
            observe_at: Instant::now(),
            said_cold: false,
            evidence: None,
            stacks: None,
            pieces: None,
            carriers: None,
            closing: None,
            notice_command: None,
        })
    }

    pub(crate) fn news(&self) -> Receiver<News> {
        self.news.clone()
    }

    pub(crate) fn interruptions(&self) -> &Receiver<String> {
        self.process.interruptions()
    }

    /// What the guard says, once there is one.
    pub(crate) fn guard_events(&self) -> Receiver<GuardEvent> {
        self.guard_events.clone()
    }

    /// What the guard said; nothing where its connection is closed.
    pub(crate) fn guard_said(&mut self, said: Option<GuardEvent>) -> Option<Event> {
        let closed = || GuardEvent::Gone { reason: "it closed its connection".into() };
        let event = said.unwrap_or_else(closed);
        if matches!(event, GuardEvent::Empty | GuardEvent::Gone { .. }) {
            // After its last event it is of no more interest.
            self.guard_events = crossbeam_channel::never();
        }
        Some(Event::Guard(event))
    }

    /// Keeps what helpers made; what the machine is to know of it.
    pub(crate) fn take(&mut self, news: News) -> Option<Event> {
        let event = match news {
            News::Event(Event::Line(Heard::Up(address))) => {
                self.direct_address = address;
                Event::Line(Heard::Up(address))
            }
            News::Event(event) => event,
            News::Located(located) => Event::Located(located.map(|(join, socket)| {
                self.socket = Some(socket);
                join
            })),
            News::Made(kept, made) => {
                *self.kept = kept.map(|kept| *kept);
                Event::FilesMade(made.map(|made| self.made = Some(made)))
            }
            News::Guarded(guard) => Event::Guarded(guard.and_then(|guard| {
                let events = guard.events().clone();
                self.guardian = Some(Guardian::start(guard, self.tell.clone())?);
                self.guard_events = events;
                Ok(())
            })),
            News::Noted(rank) => return self.take_notes(rank).then_some(Event::Reported),
        };
        Some(event)
    }

    fn say(&self, event: Event) {
        // Its own other end is there.
        let _ = self.tell.send(News::Event(event));
    }

    /// Does what the machine has decided.
    pub(crate) fn act(&mut self, action: Action) {
        let hub = self.line.teller();
        match action {
            Action::Locate => self.locate(),
            Action::Tell(at, message) => hub.tell(at, message),
            Action::Send(message) => hub.send(message),
            Action::Forget => hub.forget(),
            Action::Prepare(placement) => self.prepare(placement),
            Action::StopPreparing => self.is_ending.store(true, Ordering::Release),
            Action::Launch => {
                if let Err(why) = self.launch() {
                    self.say(Event::NotLaunched(why));
                }
            }
            Action::StopRanks { reason } => self.stop_ranks(reason),
            Action::AskStacks { request, ranks } => self.ask_stacks(request, ranks),
            Action::Read { request, wanted, runs } => self.read(request, wanted, runs),
            Action::Freeze { number } => self.freeze(number),
            Action::Thaw { number } => {
                self.frozen.thaw(number, self.ranks.values().filter_map(|rank| rank.socket.as_ref()));
            }
            Action::Notify(notice) => self.notify(&notice),
            Action::TellCarrier(carrier) => self.tell_carrier(carrier),
            Action::TellActivity(ranks) => self.tell_activity(&ranks),
            Action::Started { rank, at } => self.started(rank, at),
            Action::Gather(ended) => self.gather(ended),
            Action::GatherWithoutDisk(ended) => {
                let evidence = self.leftovers(ended).map(Leftovers::without_disk);
                evidence.into_iter().for_each(|evidence| self.tell_exit(evidence));
            }
            Action::TellExit(evidence) => self.tell_exit(*evidence),
            Action::Upload { rank } => self.upload(rank),
            Action::Renew => {
                self.relay.iter().for_each(Relay::renew);
                self.uploads.renew();
            }
            Action::Abandon => {
                self.relay.iter().for_each(Relay::abandon);
                self.uploads.abandon();
            }
            Action::EndGuard => self.guardian.iter().for_each(Guardian::end),
            Action::CloseOutput => self.close_output(),
            Action::FinishCopies => self.finish_copies(),
            Action::StopRelay => self.relay.iter().for_each(Relay::abandon),
            Action::TellDone { problem, interrupted } => self.tell_done(problem, interrupted),
        }
    }

    fn freeze(&mut self, number: u32) {
        let sockets = self.ranks.values().filter_map(|rank| rank.socket.as_ref());
        let asked = self.frozen.freeze(number, sockets);
        let asked = self.ranks.values().filter_map(|rank| rank.asked).chain(asked).max();
        self.line.teller().send(NodeMessage::Frozen { number, asked });
    }

    fn notify(&mut self, notice: &RankNotice) {
        let sockets = self.ranks.values().filter_map(|rank| rank.socket.as_ref());
        let late = self.frozen.notify(notice, sockets);
        self.line.teller().send(NodeMessage::Noticed { number: notice.number, late });
    }

    fn stop_ranks(&self, reason: Option<String>) {
        if let Some(reason) = reason {
            let (job, partition) = (&self.options.spec.job.id, self.options.here.partition);
            log::info!("job {job}: partition {partition} ends its ranks: {reason}");
        }
        self.guardian.iter().for_each(Guardian::stop);
    }

    fn ask_stacks(&mut self, request: u32, ranks: Vec<(u32, Option<u32>)>) {
        let Some(signals) = self.guardian.as_ref().and_then(Guardian::signals) else { return };
        let dir = |rank| self.ranks.get(&rank).map(|rank: &Rank| rank.dir.clone());
        let ranks = ranks.into_iter().filter_map(|(rank, pid)| Some(Writer { rank, pid, dir: dir(rank)? }));
        let ranks = ranks.collect();
        let signal = Box::new(move |rank| signals.send(rank, stacks_signal()));
        let hub = self.line.teller();
        match self.stacks.take().map_or_else(|| stacks(hub.clone(), Arc::clone(&self.is_ending)), Ok) {
            Ok(helper) => self.stacks.insert(helper).give(StacksWanted { request, ranks, signal }),
            Err(e) => log::warn!("job {}: {e}", self.options.spec.job.id),
        }
    }

    fn read(&mut self, request: u32, wanted: PieceWanted, runs: bool) {
        let hub = self.line.teller().clone();
        let no = |why| Some(NodeMessage::Piece { request, piece: Err(why) });
        let answer = match self.ranks.get(&wanted.rank) {
            None => no(format!("this node doesn't have rank {}", wanted.rank)),
            Some(rank) => {
                let socket = rank.socket.clone().filter(|_| runs);
                let of = FilesOf { log: Arc::clone(&rank.log), dir: rank.dir.clone(), socket };
                let to = hub.clone();
                let start = || pieces::pieces(move |piece| to.send(piece));
                match self.pieces.take().map_or_else(start, Ok) {
                    Ok(helper) => pieces::read(self.pieces.insert(helper), Reading { request, wanted, of }),
                    Err(e) => no(e.to_string()),
                }
            }
        };
        answer.into_iter().for_each(|answer| hub.send(answer));
    }

    fn tell_carrier(&mut self, carrier: Carrier) {
        let job = &self.options.spec.job.id;
        let Some(blocks) = self.made.as_ref().and_then(|made| made.blocks.as_ref()) else { return };
        match self.carriers.take().map_or_else(|| blocks.carriers(job), Ok) {
            Ok(helper) => {
                let helper = self.carriers.insert(helper);
                if helper.waiting() < MOST_CARRIERS {
                    helper.give(carrier);
                }
            }
            Err(e) => log::warn!("job {job}: {e}"),
        }
    }

    fn upload(&mut self, rank: u32) {
        let Some(path) = self.ranks.get(&rank).map(|rank| rank.dir.join(FILE_RESULT)) else { return };
        if let Err(why) = self.uploads.start(rank, path) {
            self.say(Event::Uploaded(Err(why)));
        }
    }

    /// Takes what is in the ranks' pipes. A disk that hangs holds that up for a while.
    fn close_output(&mut self) {
        let mut readers = Vec::new();
        for rank in self.ranks.values_mut() {
            readers.extend([rank.notes.take(), rank.output.take()].into_iter().flatten());
        }
        if readers.iter().all(PipeReader::is_finished) {
            drop(readers);
            return self.say(Event::OutputClosed);
        }
        let tell = self.tell.clone();
        let close = move |readers: Vec<PipeReader>| {
            drop(readers);
            let _ = tell.send(News::Event(Event::OutputClosed));
        };
        match Helper::start("phalanx-close", close) {
            Ok(helper) => self.closing.insert(helper).give(readers),
            Err(e) => {
                log::warn!("job {}: {e}", self.options.spec.job.id);
                drop(readers);
                self.say(Event::OutputClosed);
            }
        }
    }

    /// Has the relay and the executor's log take the rest.
    fn finish_copies(&mut self) {
        match &self.relay {
            Some(relay) => relay.finish(),
            None => self.say(Event::Relayed),
        }
        match &self.executor_log {
            Some(copy) => copy.finish(std::mem::take(&mut self.failed)),
            None => self.say(Event::LogCopied),
        }
    }

    fn tell_done(&self, problem: Option<String>, interrupted: Option<String>) {
        let totals = self.ranks.iter().filter(|_| self.options.spec.job.logs.live);
        let output = totals.map(|(number, rank)| OutputTotal {
            rank: *number,
            bytes: rank.log.end(),
            log_path: rank.log.path().to_string_lossy().into_owned(),
        });
        let done = NodeMessage::Done { problem, interrupted, output: output.collect() };
        self.line.teller().tell(Instant::now(), done);
    }

    /// Where the store is for this node and its ranks.
    fn store_address(&self) -> Option<SocketAddr> {
        self.store.as_ref().map(NodeStore::address)
    }
}

impl Drop for Effects<'_, '_> {
    fn drop(&mut self) {
        self.is_ending.store(true, Ordering::Release);
    }
}
