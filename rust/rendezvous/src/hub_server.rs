//! The driver's end of a job on the network: one listening socket, one thread, many nodes.
//!
//! It authenticates connections, turns their bytes into messages, output and results for a [`Handler`], and carries
//! the handler's orders back. The handler decides what they mean.
//!
//! - HUB-10 (proof-first): a connection that doesn't speak TLS and prove knowledge of the token within
//!   [`PROOF_TIMEOUT`] of its beginning is closed and changes nothing.
//! - HUB-11 (never-waits): the hub waits for no connection. A slow, silent or half-open peer delays nobody.
//! - HUB-12 (back-pressure): output that nobody takes stays in the sender's socket, not in memory. Facts and orders
//!   overtake it on connections of their own.
//! - HUB-13 (clean-close): after [`HubServer::close`] no thread and no socket of the hub is left.
//! - HUB-14 (one-result): a result that arrives twice is kept once. One connection at a time brings it: an older one is
//!   dropped when a newer one does. What is there already, or is of an attempt that is over, is passed over.
//! - HUB-15 (goes-on): a result whose connection breaks goes on over the next one where the hub has it. What never
//!   becomes whole leaves nothing: it goes when the rank's result is brought anew, with its attempt, or with the hub.

mod admission;
mod results;
mod spares;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::ErrorKind as IoKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token as MioToken, Waker};
use phalanx_io::{Backlog, Identity, PublicKey, Refusals, TlsServer, Unproved};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Error, ErrorKind, Result};

pub use admission::PROOF_TIMEOUT;

use crate::arrival::Arrival;
use crate::clock::Clock;
use crate::connection::{Brings, Connection, READ_BYTES, ReadState, Stage};
use crate::handler::{Handler, Outbox};
use crate::interfaces;
use crate::listener;
use crate::result_writer::ResultWriter;
use crate::wire::{self, Frame, Token};

/// How often one connection is read before the others get their turn.
const READS_A_TURN: usize = 8;

const LISTENER: MioToken = MioToken(0);
const WAKER: MioToken = MioToken(1);

/// Where to listen and whom to believe.
#[derive(Clone)]
pub struct HubServerOptions {
    /// The address to bind; empty for the one that `advertise` resolves to.
    pub bind: String,
    /// The host name or address under which nodes reach the driver.
    pub advertise: String,
    /// The port to listen at, or the first of some to try; 0 for any.
    pub port: u16,
    /// The job's id.
    pub job: String,
    /// The job's secret.
    pub token: Token,
}

/// A running hub.
pub struct HubServer<C: Send + 'static> {
    address: String,
    key: PublicKey,
    commands: Sender<C>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Send + 'static> HubServer<C> {
    /// Listens and starts the hub's thread.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] or [`ErrorKind::Unreachable`] if the address can't be bound or resolved.
    pub fn open<H: Handler<Command = C>>(options: HubServerOptions, handler: H) -> Result<HubServer<C>> {
        let listener = listener::listen(&options.bind, &options.advertise, options.port)?;
        let port = listener.local_addr().map_err(|e| Error::io("read the hub's port", &e))?.port();
        let address = interfaces::join_host_port(&options.advertise, port);
        let failed = |e: &std::io::Error| Error::io("set up the hub's event loop", e);
        let poll = Poll::new().map_err(|e| failed(&e))?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(|e| failed(&e))?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(|e| failed(&e))?);
        let identity = Identity::new()?;
        let (commands, inbox) = crossbeam_channel::unbounded();
        let server = Server {
            tls: TlsServer::new(&identity, &wire::protocol_name())?,
            options,
            handler,
            poll,
            listener,
            inbox,
            connections: HashMap::new(),
            control: HashMap::new(),
            spares: BTreeSet::new(),
            seats_seen: None,
            bringing: HashMap::new(),
            unfinished: BTreeSet::new(),
            unproved: Unproved::new(admission::MAX_UNPROVED),
            next_token: 2,
            read_buffer: vec![0; READ_BYTES],
            refusals: Refusals::default(),
            backlog: Backlog::new("the hub"),
            clock: Clock::new(),
            results: ResultWriter::new(Arc::clone(&waker)),
            interrupted: BTreeMap::new(),
            out: Outbox::default(),
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-hub".into())
            .spawn(move || server.run())
            .map_err(|e| Error::io("start the hub's thread", &e))?;
        let key = identity.public_key().clone();
        Ok(HubServer { address, key, commands, waker, thread: Some(thread) })
    }

    /// Where nodes reach it: `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// By which nodes know it.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// Tells the handler something.
    pub fn command(&self, command: C) {
        if self.commands.send(command).is_ok() {
            self.wake();
        }
    }

    /// Has the hub look again, e.g. whether output can be taken now.
    pub fn wake(&self) {
        if let Err(e) = self.waker.wake() {
            log::warn!("can't wake the hub: {e}");
        }
    }

    /// A handle that does what [`HubServer::wake`] does.
    pub fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    /// Closes every connection and ends the thread. Blocks until it has ended.
    pub fn close(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        // The thread ends when its last command sender is gone.
        self.commands = crossbeam_channel::bounded(0).0;
        self.wake();
        if thread.join().is_err() {
            log::error!("the hub's thread panicked");
        }
    }
}

impl<C: Send + 'static> Drop for HubServer<C> {
    fn drop(&mut self) {
        self.close();
    }
}

struct Server<H: Handler> {
    options: HubServerOptions,
    tls: TlsServer,
    handler: H,
    poll: Poll,
    listener: TcpListener,
    inbox: Receiver<H::Command>,
    connections: HashMap<MioToken, Connection>,
    /// The control connection of each partition.
    control: HashMap<u32, MioToken>,
    /// The connections of tasks that wait for a seat.
    spares: BTreeSet<MioToken>,
    /// [`Handler::seats`] when they were last asked about, if no other has come since.
    seats_seen: Option<u64>,
    /// The connection that brings this, if one does.
    bringing: HashMap<Brings, MioToken>,
    /// Connections that were left with bytes to read.
    unfinished: BTreeSet<MioToken>,
    /// Connections that have yet to prove themselves, by the address that they come from.
    unproved: Unproved<IpAddr, MioToken>,
    next_token: usize,
    read_buffer: Vec<u8>,
    refusals: Refusals,
    backlog: Backlog,
    clock: Clock,
    results: ResultWriter,
    /// What has arrived of ranks' results of the present attempt that no connection brings now.
    interrupted: BTreeMap<u32, Arrival>,
    out: Outbox,
}

impl<H: Handler> Server<H> {
    fn run(mut self) {
        let mut events = Events::with_capacity(256);
        let mut wake_at = Some(Instant::now());
        loop {
            let due = self.due(wake_at);
            let began = self.clock.begin_wait(Instant::now());
            let patience = due.map(|at| at.saturating_duration_since(began));
            if let Err(e) = self.poll.poll(&mut events, patience)
                && e.kind() != IoKind::Interrupted
            {
                log::error!("the hub's event loop failed: {e}");
                return;
            }
            let now = self.clock.end_wait(Instant::now(), due);
            if !self.take_commands(now) {
                return;
            }
            if self.backlog.is_due(now) || events.iter().any(|e| e.token() == LISTENER) {
                self.accept(now);
            }
            for event in &events {
                let token = event.token();
                if token == LISTENER || token == WAKER {
                    continue;
                }
                if event.is_writable() {
                    let flushed = self.connections.get_mut(&token).map_or(Ok(()), Connection::flush);
                    self.check(now, token, flushed);
                }
                self.unfinished.insert(token);
            }
            for token in std::mem::take(&mut self.unfinished) {
                self.serve(now, token);
            }
            self.take_outcomes(now);
            self.close_unproved(now);
            self.seat_spares(now);
            self.handler.spares(self.spares.len());
            wake_at = self.handler.tick(now, &mut self.out);
            self.drop_results_of_the_past();
            self.deliver(now);
        }
    }

    /// When there will be something to do, if nothing happens before.
    fn due(&self, wake_at: Option<Instant>) -> Option<Instant> {
        if self.unfinished.iter().any(|token| !self.is_paused(*token)) || self.may_seat_spares() {
            return Some(self.clock.now(Instant::now()));
        }
        [self.unproved.due(), wake_at, self.backlog.due()].into_iter().flatten().min()
    }

    fn is_paused(&self, token: MioToken) -> bool {
        match self.connections.get(&token).map(|connection| &connection.stage) {
            Some(Stage::Logs { .. }) => !self.handler.takes_output(),
            Some(Stage::Result { .. }) => !self.results.has_room(),
            _ => false,
        }
    }

    /// Returns false when the owner is gone.
    fn take_commands(&mut self, now: Instant) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(command) => self.handler.command(now, command, &mut self.out),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn accept(&mut self, now: Instant) {
        while let Some((stream, peer)) = self.backlog.next(now, || self.listener.accept()) {
            if let Err(e) = self.begin(now, stream, peer.ip().to_canonical()) {
                log::debug!("a connection from {peer} ended at once: {e}");
            }
        }
    }

    /// Reads a connection and handles what it says.
    fn serve(&mut self, now: Instant, token: MioToken) {
        for _ in 0..READS_A_TURN {
            if self.is_paused(token) {
                break;
            }
            let Some(connection) = self.connections.get_mut(&token) else { return };
            let state = connection.read(&mut self.read_buffer);
            let handled = self.handle_frames(now, token);
            match (state, handled) {
                (Ok(ReadState::Drained), Ok(())) => return,
                (Ok(ReadState::More), Ok(())) => {}
                (Ok(ReadState::Ended), Ok(())) => return self.close_connection(now, token, None),
                (Err(e), _) | (_, Err(e)) => return self.close_connection(now, token, Some(&e)),
            }
        }
        self.unfinished.insert(token);
    }

    fn handle_frames(&mut self, now: Instant, token: MioToken) -> Result<()> {
        loop {
            let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
            let limit = connection.stage.max_frame_bytes();
            let Some(body) = connection.inbox.next_frame(limit)? else { return Ok(()) };
            match (&mut connection.stage, wire::parse(body)?) {
                (Stage::Unproved { .. }, Frame::Json(json)) => {
                    let hello = wire::message(json)?;
                    let binding = connection.binding()?;
                    self.admit(now, token, &binding, &hello).inspect_err(|_| self.refuse(token))?;
                }
                (Stage::Control { partition, attempt }, Frame::Json(json)) => {
                    let (partition, attempt, message) = (*partition, *attempt, wire::message(json)?);
                    self.handler.message(now, partition, attempt, message, &mut self.out);
                }
                (Stage::Spare(spare), Frame::Json(json)) => {
                    if let Some(answer) = spare.hear(now, wire::message(json)?) {
                        self.order(now, token, &answer);
                    }
                }
                (Stage::Logs { partition, attempt }, Frame::Output { rank, offset, bytes }) => {
                    self.handler.output(*partition, *attempt, rank, offset, bytes);
                }
                (Stage::Logs { partition, attempt }, Frame::Skip { rank, resume_at, notice }) => {
                    self.handler.skip(*partition, *attempt, rank, resume_at, notice);
                }
                (Stage::Logs { .. }, Frame::Json(json)) => {
                    // Asks whether all before it has arrived: it has.
                    let NodeMessage::Ping = wire::message(json)? else {
                        return Err(Error::new(
                            ErrorKind::Protocol,
                            "a message that doesn't belong among output",
                        ));
                    };
                    let mut frame = Vec::new();
                    wire::encode_json(&HubMessage::Pong, &mut frame);
                    connection.send(&frame)?;
                }
                (Stage::Result { rank, arrival }, Frame::Data(bytes)) => {
                    if !arrival.take(bytes.len()) {
                        let why = format!("more bytes of rank {rank}'s result than were announced");
                        return Err(Error::new(ErrorKind::Protocol, why));
                    }
                    if let Some(key) = arrival.key {
                        self.results.write(key, bytes);
                    }
                    self.keep_whole_result(now, token);
                }
                _ => {
                    return Err(Error::new(
                        ErrorKind::Protocol,
                        "a frame that doesn't belong on this connection",
                    ));
                }
            }
        }
    }

    /// A node brings again what an older connection, which may be half open for a long time yet, was bringing.
    fn close_older(&mut self, now: Instant, what: Brings, attempt: Attempt) {
        let Some(older) = self.bringing.get(&what).copied() else { return };
        let stage = self.connections.get(&older).map(|connection| &connection.stage);
        // What is of a newer attempt stays.
        if stage.and_then(Stage::brings).is_some_and(|(_, of)| of <= attempt) {
            self.close_connection(now, older, None);
        }
    }

    fn check(&mut self, now: Instant, token: MioToken, result: Result<()>) {
        if let Err(e) = result {
            self.close_connection(now, token, Some(&e));
        }
    }

    /// Closes a connection and tells the handler what that means.
    fn close_connection(&mut self, now: Instant, token: MioToken, why: Option<&Error>) {
        let Some(connection) = self.drop_connection(token) else { return };
        if let Some(why) = why {
            let peer = connection.stream.peer_addr().map_or_else(|_| "a peer".to_string(), |a| a.to_string());
            let text = format_args!("the hub closes its connection to {peer}: {why}");
            match why.kind() {
                ErrorKind::Refused | ErrorKind::Protocol => self.refusals.log(now, text),
                _ => log::debug!("{text}"),
            }
        }
        match connection.stage {
            Stage::Control { partition, .. } if self.control.get(&partition) == Some(&token) => {
                self.control.remove(&partition);
                self.handler.disconnected(now, partition, &mut self.out);
            }
            Stage::Logs { partition, .. } => self.handler.logs_closed(partition),
            _ => {}
        }
    }

    fn drop_connection(&mut self, token: MioToken) -> Option<Connection> {
        let mut connection = self.connections.remove(&token)?;
        self.unfinished.remove(&token);
        self.spares.remove(&token);
        self.unproved.retain(|unproved| *unproved != token);
        if let Some((what, _)) = connection.stage.brings()
            && self.bringing.get(&what) == Some(&token)
        {
            self.bringing.remove(&what);
        }
        if let Stage::Result { rank, arrival } = &mut connection.stage {
            let (rank, arrival) = (*rank, std::mem::take(arrival));
            self.interrupt_result(rank, arrival);
        }
        if let Err(e) = self.poll.registry().deregister(&mut connection.stream) {
            log::debug!("a connection could not be taken out of the event loop: {e}");
        }
        Some(connection)
    }

    /// Sends the handler's orders; a node that can't be told is a node that is gone, which may give new orders.
    fn deliver(&mut self, now: Instant) {
        loop {
            let orders = self.out.take();
            if orders.is_empty() {
                return;
            }
            for (partition, message) in orders {
                if let Some(token) = self.control.get(&partition).copied() {
                    self.order(now, token, &message);
                }
            }
        }
    }
}
