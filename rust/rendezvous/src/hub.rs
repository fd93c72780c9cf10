//! The driver's end of a job on the network: one listening socket, one thread, many nodes.
//!
//! It authenticates connections, turns their bytes into messages, output and results for a [`Handler`], and carries
//! the handler's orders back. What any of it means is the handler's business.
//!
//! HUB-1: a connection that doesn't prove knowledge of the token within [`PROOF_TIMEOUT`] is closed and changes
//! nothing. HUB-2: no connection is waited for: a slow, silent or half-open peer holds up nobody. HUB-3: output that
//! nobody takes is left in the sender's socket, not in memory; facts and orders pass it on connections of their own.
//! HUB-4: after [`Hub::close`] no thread and no socket of the hub is left.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io::{ErrorKind as IoKind, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TryRecvError};
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token as MioToken, Waker};
use phalanx_types::message::{Challenge, Hello, HubMessage, NodeMessage, Role, Welcome};
use phalanx_types::{Error, ErrorKind, Result};
use socket2::SockRef;

use crate::clock::Clock;
use crate::connection::{Connection, ReadState, Stage};
use crate::handler::{Handler, Outbox};
use crate::wire::{self, Frame, Token};
use crate::{interfaces, listening};

/// How long a connection may take to prove itself.
pub const PROOF_TIMEOUT: Duration = Duration::from_secs(5);
/// How many connections may be unproved at a time; beyond it the oldest goes.
const MAX_UNPROVED: usize = 1024;
/// How often one connection is read before the others get their turn.
const READS_A_TURN: usize = 8;
/// How long accepting rests when the process has no descriptor left.
const ACCEPT_REST: Duration = Duration::from_millis(50);

const LISTENER: MioToken = MioToken(0);
const WAKER: MioToken = MioToken(1);

/// Where to listen and whom to believe.
#[derive(Clone)]
pub struct HubOptions {
    /// The address to bind; empty for the one that `advertise` resolves to.
    pub bind: String,
    /// The host name or address under which nodes reach the driver.
    pub advertise: String,
    /// The job's id.
    pub job: String,
    /// The job's secret.
    pub token: Token,
}

/// A running hub.
pub struct Hub<C> {
    address: String,
    commands: Sender<C>,
    waker: Arc<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl<C: Send + 'static> Hub<C> {
    /// Listens and starts the hub's thread.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] or [`ErrorKind::Unreachable`] if the address can't be bound or resolved.
    pub fn open<H: Handler<Command = C>>(options: HubOptions, handler: H) -> Result<Hub<C>> {
        let listener = listening::socket(&options)?;
        let port = listener.local_addr().map_err(|e| Error::io("read the hub's port", &e))?.port();
        let address = interfaces::join_host_port(&options.advertise, port);
        let failed = |e: &std::io::Error| Error::io("set up the hub's event loop", e);
        let poll = Poll::new().map_err(|e| failed(&e))?;
        let mut listener = TcpListener::from_std(listener);
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(|e| failed(&e))?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(|e| failed(&e))?);
        let (commands, inbox) = crossbeam_channel::unbounded();
        let server = Server {
            options,
            handler,
            poll,
            listener,
            inbox,
            connections: HashMap::new(),
            control: HashMap::new(),
            unfinished: BTreeSet::new(),
            unproved: VecDeque::new(),
            next_token: 2,
            accept_again: None,
            clock: Clock::new(),
            out: Outbox::default(),
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-hub".into())
            .spawn(move || server.run())
            .map_err(|e| Error::io("start the hub's thread", &e))?;
        Ok(Hub { address, commands, waker, thread: Some(thread) })
    }

    /// Where nodes reach it: `host:port`.
    pub fn address(&self) -> &str {
        &self.address
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

    /// A handle that does what [`Hub::wake`] does.
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

impl<C> Drop for Hub<C> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.commands = crossbeam_channel::bounded(0).0;
            let _ = self.waker.wake();
            let _ = thread.join();
        }
    }
}

struct Server<H: Handler> {
    options: HubOptions,
    handler: H,
    poll: Poll,
    listener: TcpListener,
    inbox: Receiver<H::Command>,
    connections: HashMap<MioToken, Connection>,
    /// The control connection of each partition.
    control: HashMap<u32, MioToken>,
    /// Connections that were left with bytes to read.
    unfinished: BTreeSet<MioToken>,
    /// Connections that were challenged, oldest first, and until when they may answer.
    unproved: VecDeque<(Instant, MioToken)>,
    next_token: usize,
    accept_again: Option<Instant>,
    clock: Clock,
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
            let again = self.accept_again.is_some_and(|at| at <= now);
            if again || events.iter().any(|e| e.token() == LISTENER) {
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
            self.close_unproved(now);
            wake_at = self.handler.tick(now, &mut self.out);
            self.deliver(now);
        }
    }

    /// When there will be something to do, if nothing happens before.
    fn due(&self, wake_at: Option<Instant>) -> Option<Instant> {
        if self.unfinished.iter().any(|token| !self.is_paused(*token)) {
            return Some(self.clock.now(Instant::now()));
        }
        let proof_due = self.unproved.front().map(|(until, _)| *until);
        [proof_due, wake_at, self.accept_again].into_iter().flatten().min()
    }

    fn is_paused(&self, token: MioToken) -> bool {
        let is_logs = self.connections.get(&token).is_some_and(|c| matches!(c.stage, Stage::Logs { .. }));
        is_logs && !self.handler.takes_output()
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
        self.accept_again = None;
        loop {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    if let Err(e) = self.challenge(now, stream) {
                        log::debug!("a connection from {peer} ended at once: {e}");
                    }
                }
                Err(e) if e.kind() == IoKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), IoKind::Interrupted | IoKind::ConnectionAborted) => {}
                Err(e) => {
                    // Out of descriptors or memory: others may give some back.
                    log::warn!("the hub can't accept connections at the moment: {e}");
                    self.accept_again = Some(now + ACCEPT_REST);
                    return;
                }
            }
        }
    }

    fn challenge(&mut self, now: Instant, mut stream: mio::net::TcpStream) -> Result<()> {
        crate::client::tune(&SockRef::from(&stream));
        let token = MioToken(self.next_token);
        self.next_token += 1;
        self.poll
            .registry()
            .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)
            .map_err(|e| Error::io("watch a connection", &e))?;
        let challenge =
            Challenge { version: phalanx_types::job::VERSION, nonce: wire::hex(&wire::random_token()?) };
        let mut frame = Vec::new();
        wire::encode_json(&challenge, &mut frame);
        let mut connection = Connection::new(stream, Stage::Challenged { challenge });
        connection.send(&frame)?;
        self.connections.insert(token, connection);
        self.unproved.push_back((now + PROOF_TIMEOUT, token));
        self.unfinished.insert(token);
        Ok(())
    }

    /// Reads a connection and handles what it says.
    fn serve(&mut self, now: Instant, token: MioToken) {
        for _ in 0..READS_A_TURN {
            if self.is_paused(token) {
                break;
            }
            let Some(connection) = self.connections.get_mut(&token) else { return };
            let state = connection.read();
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
            let Some(frame) = connection.inbox.next_frame(limit)? else { return Ok(()) };
            match (&mut connection.stage, frame) {
                (Stage::Challenged { challenge }, Frame::Json(json)) => {
                    let (challenge, hello) = (challenge.clone(), wire::message(json)?);
                    self.admit(now, token, &challenge, &hello).inspect_err(|_| self.refuse(token))?;
                }
                (Stage::Control { partition, attempt }, Frame::Json(json)) => {
                    let (partition, attempt, message) = (*partition, *attempt, wire::message(json)?);
                    self.handler.message(now, partition, attempt, message, &mut self.out);
                }
                (Stage::Logs { attempt, .. }, Frame::Output { rank, offset, bytes }) => {
                    self.handler.output(*attempt, rank, offset, bytes);
                }
                (Stage::Logs { attempt, .. }, Frame::Skip { rank, resume_at, notice }) => {
                    self.handler.skip(*attempt, rank, resume_at, notice);
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
                (Stage::Result { rank, file, left }, Frame::Data(bytes)) => {
                    let rank = *rank;
                    *left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
                        Error::new(
                            ErrorKind::Protocol,
                            format!("more bytes of rank {rank}'s result than were announced"),
                        )
                    })?;
                    if let Some(Err(e)) = file.as_mut().map(|file| file.write_all(bytes)) {
                        *file = None;
                        let why = Error::io("write its file", &e);
                        self.handler.result_lost(now, rank, &why, &mut self.out);
                    }
                    if *left == 0 {
                        let kept = file.is_some();
                        self.result_is_in(now, token, rank, kept)?;
                    }
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

    /// Tells a peer that it won't be admitted, which a connection that just ends would not.
    fn refuse(&mut self, token: MioToken) {
        let mut frame = Vec::new();
        wire::encode_json(&Welcome::refusal(), &mut frame);
        // One that can't be told finds the connection closed, and tries again.
        let _ = self.connections.get_mut(&token).map(|connection| connection.send(&frame));
    }

    /// Checks a proof and gives the connection its role.
    fn admit(&mut self, now: Instant, token: MioToken, challenge: &Challenge, hello: &Hello) -> Result<()> {
        let ours = hello.version == phalanx_types::job::VERSION && hello.job == self.options.job;
        if !ours || !wire::client_is_proved(&self.options.token, challenge, hello) {
            return Err(Error::new(ErrorKind::Refused, "a connection without this job's token"));
        }
        let (Role::Control { attempt, .. } | Role::Logs { attempt, .. } | Role::Result { attempt, .. }) =
            hello.role;
        if !self.handler.admits(attempt) {
            return Err(Error::new(ErrorKind::Closed, format!("it is of attempt {attempt}, which is over")));
        }
        let mut received = Vec::new();
        let stage = match hello.role {
            Role::Control { partition, attempt } => {
                // A node that comes back replaces its old connection, which may be half open for a long time yet.
                if let Some(old) = self.control.insert(partition, token) {
                    self.drop_connection(old);
                }
                Stage::Control { partition, attempt }
            }
            Role::Logs { partition, attempt } => {
                // What the old one still had on its way is sent again.
                let is_old =
                    |c: &Connection| matches!(c.stage, Stage::Logs { partition: of, .. } if of == partition);
                let old = self.connections.iter().find(|(_, c)| is_old(c)).map(|(token, _)| *token);
                if let Some(old) = old {
                    self.close_connection(now, old, None);
                }
                received = self.handler.logs_opened(partition);
                Stage::Logs { partition, attempt }
            }
            Role::Result { rank, bytes, .. } => {
                let file = match self.handler.result_file(rank) {
                    Err(e) if e.kind() == ErrorKind::Io => {
                        self.handler.result_lost(now, rank, &e, &mut self.out);
                        None
                    }
                    other => Some(other?),
                };
                Stage::Result { rank, file, left: bytes }
            }
        };
        let mut frame = Vec::new();
        wire::encode_json(&wire::welcome(&self.options.token, challenge, hello, received), &mut frame);
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        let empty = match &stage {
            Stage::Result { rank, file, left: 0 } => Some((*rank, file.is_some())),
            _ => None,
        };
        connection.stage = stage;
        connection.send(&frame)?;
        if let Some((rank, kept)) = empty {
            self.result_is_in(now, token, rank, kept)?;
        }
        Ok(())
    }

    /// Tells the handler, then the node, which may delete its copy.
    fn result_is_in(&mut self, now: Instant, token: MioToken, rank: u32, kept: bool) -> Result<()> {
        if kept {
            self.handler.result_arrived(now, rank, &mut self.out);
        }
        let mut frame = Vec::new();
        wire::encode_json(&HubMessage::Released, &mut frame);
        self.connections.get_mut(&token).map_or(Ok(()), |connection| connection.send(&frame))
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
            let level = if why.kind() == ErrorKind::Refused { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "the hub closes its connection to {peer}: {why}");
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
        if let Err(e) = self.poll.registry().deregister(&mut connection.stream) {
            log::debug!("a connection could not be taken out of the event loop: {e}");
        }
        Some(connection)
    }

    fn close_unproved(&mut self, now: Instant) {
        while let Some((until, token)) = self.unproved.front().copied() {
            if until > now && self.unproved.len() <= MAX_UNPROVED {
                return;
            }
            self.unproved.pop_front();
            let still = self.connections.get(&token).map(|c| &c.stage);
            if matches!(still, Some(Stage::Challenged { .. })) {
                let why = Error::new(ErrorKind::Timeout, "it did not prove itself in time");
                self.close_connection(now, token, Some(&why));
            }
        }
    }

    /// Sends the handler's orders; a node that can't be told is a node that is gone, which may give new orders.
    fn deliver(&mut self, now: Instant) {
        loop {
            let orders = self.out.take();
            if orders.is_empty() {
                return;
            }
            for (partition, message) in orders {
                let Some(token) = self.control.get(&partition).copied() else { continue };
                let mut frame = Vec::new();
                wire::encode_json(&message, &mut frame);
                let sent = self.connections.get_mut(&token).map_or(Ok(()), |c| c.send(&frame));
                self.check(now, token, sent);
            }
        }
    }
}
