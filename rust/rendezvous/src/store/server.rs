//! The store behind a listening socket: one thread, one event loop.
//!
//! Sockets are registered once, edge-triggered, for reading and writing. A read that returns less than it was asked
//! for has drained the socket on Linux (epoll(7), for stream sockets: more bytes, or the end, make a new edge), which
//! saves the second `read` of every request; elsewhere the loop reads until it would block.

use std::io::{self, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Interest, Poll, Token, Waker};
use phalanx_io::{Backlog, Identity, Refusals, TlsServer, Unproved, check_owners_are_told};
use phalanx_types::{Error, Key, Network, Result};
use socket2::SockRef;

use super::admits::Admits;
use super::machine::Machine;
use super::protocol::Violation;
use super::waits::ClientId;
use crate::client::tune;
use crate::loop_thread::{LoopThread, watch_listener};
use crate::secure::Secure;
use crate::unsent::{would_block, write_pieces};

/// How much is read at once.
const READ_BYTES: usize = 64 * 1024;
/// How many pieces of an answer are sent at once: 64 of a gloo group of 1,000 ranks are 8 MB.
const PIECES_A_WRITE: usize = 64;
/// How much one client may send before the others' turn.
const READS_A_TURN: usize = 16;

/// How long the loop looks for more before it sleeps: a client that asks one thing after another answers within this,
/// and to be woken takes as long again.
const AWAKE: Duration = Duration::from_micros(50);
/// How long a node may take to prove itself.
const PROVED_WITHIN: Duration = Duration::from_secs(5);
/// How many connections may be at that.
const MAX_UNPROVED: usize = 1024;

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);
const NODES: Token = Token(usize::MAX - 2);

/// A running server of the c10d store; it stops when dropped.
///
/// ```
/// use std::net::TcpListener;
/// use std::time::Duration;
/// use phalanx_rendezvous::store::{StoreClient, StoreServer};
/// use phalanx_types::Deadline;
///
/// # fn main() -> phalanx_types::Result<()> {
/// let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| phalanx_types::Error::io("bind", &error))?;
/// let server = StoreServer::start(listener, None)?;
/// let soon = Deadline::after(Duration::from_secs(10));
/// let mut client = StoreClient::connect(server.address(), soon)?;
/// client.set("epoch", b"7", soon)?;
/// assert_eq!(client.get("epoch", soon)?, b"7");
/// server.stop();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StoreServer {
    address: SocketAddr,
    thread: LoopThread,
}

impl StoreServer {
    /// Serves on `listener`, on a thread of its own. With `allowed`, connections from elsewhere are told so (STORE-5)
    /// and closed at once. An IPv4 address counts as the same when it comes mapped into IPv6.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system refuses the event queue or the thread.
    pub fn start(listener: TcpListener, allowed: Option<Vec<Network>>) -> Result<StoreServer> {
        let admits = allowed.map_or(Admits::All, |allowed| Admits::Some(allowed.into()));
        StoreServer::serve(listener, admits, None)
    }

    /// Serves processes of this one's user on `listener`, which is at an IPv4 loopback address, and other nodes on
    /// `nodes`: these see `identity`, and prove that they know the attempt's `key` (STORE-6).
    ///
    /// # Errors
    /// As [`StoreServer::start`]; [`phalanx_types::ErrorKind::State`] if the system doesn't tell whose connections are.
    pub fn start_secure(
        listener: TcpListener,
        nodes: TcpListener,
        identity: &Identity,
        key: Key,
    ) -> Result<StoreServer> {
        check_owners_are_told()?;
        let tls = TlsServer::new(identity, super::PROTOCOL)?;
        StoreServer::serve(listener, Admits::OwnUser, Some((nodes, tls, key)))
    }

    fn serve(
        listener: TcpListener,
        admits: Admits,
        nodes: Option<(TcpListener, TlsServer, Key)>,
    ) -> Result<StoreServer> {
        let failed = |error: io::Error| Error::io("serve the store", &error);
        let address = listener.local_addr().map_err(failed)?;
        let poll = Poll::new().map_err(failed)?;
        let listener = watch_listener(&poll, listener, LISTENER).map_err(failed)?;
        let nodes = match nodes {
            None => None,
            Some((nodes, tls, key)) => {
                let listener = watch_listener(&poll, nodes, NODES).map_err(failed)?;
                let backlog = Backlog::new("the store");
                Some(NodesDoor { listener, tls, key, backlog, unproved: Unproved::new(MAX_UNPROVED) })
            }
        };
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let mut event_loop = EventLoop {
            poll,
            listener,
            admits,
            nodes,
            said: Vec::new(),
            stopping: Arc::clone(&stopping),
            machine: Machine::default(),
            connections: Vec::new(),
            again: Vec::new(),
            backlog: Backlog::new("the store"),
            refusals: Refusals::default(),
            buffer: vec![0; READ_BYTES],
        };
        let thread = LoopThread::start(
            "phalanx-store",
            format!("the store at {address}"),
            waker,
            stopping,
            move || event_loop.run(),
        )
        .map_err(failed)?;
        Ok(StoreServer { address, thread })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server: returns when its thread has ended and all its sockets are closed. Further calls do nothing.
    pub fn stop(&self) {
        self.thread.stop();
    }
}

/// Where other nodes come in.
struct NodesDoor {
    listener: mio::net::TcpListener,
    tls: TlsServer,
    key: Key,
    backlog: Backlog,
    unproved: Unproved<IpAddr, ClientId>,
}

struct EventLoop {
    poll: Poll,
    listener: mio::net::TcpListener,
    admits: Admits,
    nodes: Option<NodesDoor>,
    /// What a node said, for the moment of its reading.
    said: Vec<u8>,
    stopping: Arc<AtomicBool>,
    machine: Machine,
    /// Indexed by client.
    connections: Vec<Option<Connection>>,
    /// Clients whose turn was over before their bytes were.
    again: Vec<ClientId>,
    backlog: Backlog,
    refusals: Refusals,
    buffer: Vec<u8>,
}

struct Connection {
    stream: mio::net::TcpStream,
    peer: SocketAddr,
    /// There may be bytes to read that no new edge will announce.
    readable: bool,
    /// The peer has closed its end, so a short read doesn't mean that nothing follows.
    ending: bool,
    /// It has said everything: it is closed when it has heard everything.
    ended: bool,
    /// What a node's connection speaks; a rank's is plain.
    secure: Option<Box<Secure>>,
}

impl EventLoop {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        let mut awake_until = Instant::now();
        while !self.stopping.load(Ordering::Acquire) {
            let is_awake = Instant::now() < awake_until;
            let patience = if is_awake { Some(Duration::ZERO) } else { self.patience() };
            match self.poll.poll(&mut events, patience) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            if !events.is_empty() {
                awake_until = Instant::now() + AWAKE;
            } else if is_awake {
                // Whoever else wants the processor has it, and so may a client on this one.
                rustix::thread::sched_yield();
                continue;
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    NODES => self.accept_nodes(),
                    WAKER => {}
                    token => self.handle(token, event),
                }
            }
            if self.backlog.is_due(Instant::now()) {
                self.accept();
            }
            if self.nodes.as_ref().is_some_and(|door| door.backlog.is_due(Instant::now())) {
                self.accept_nodes();
            }
            while let Some(late) = self.nodes.as_mut().and_then(|d| d.unproved.expired(Instant::now())) {
                self.close(late, "it didn't prove in time that it is a node of this job");
            }
            for id in std::mem::take(&mut self.again) {
                self.read(id);
            }
        }
        Ok(())
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        if self.again.is_empty() {
            let nodes = self.nodes.iter().flat_map(|door| [door.backlog.due(), door.unproved.due()]);
            let due = nodes.chain([self.backlog.due()]).flatten().min();
            due.map(|at| at.saturating_duration_since(Instant::now()))
        } else {
            Some(Duration::ZERO)
        }
    }

    fn accept(&mut self) {
        while let Some((stream, peer)) = self.backlog.next(Instant::now(), || self.listener.accept()) {
            self.admit(stream, peer);
        }
    }

    fn admit(&mut self, mut stream: mio::net::TcpStream, peer: SocketAddr) {
        match self.admits.admit(&mut stream, peer.ip()) {
            Ok(()) => _ = self.take(stream, peer, None),
            Err(why) => self.tell_refusal(peer, &why),
        }
    }

    fn tell_refusal(&mut self, peer: SocketAddr, why: &Error) {
        self.refusals.tell(Instant::now(), format_args!("the store refused a connection from {peer}: {why}"));
    }

    fn accept_nodes(&mut self) {
        while let Some(door) = &mut self.nodes
            && let Some((stream, peer)) = door.backlog.next(Instant::now(), || door.listener.accept())
        {
            let secure = match Secure::of_server(&door.tls, door.key.clone()) {
                Ok(secure) => Box::new(secure),
                Err(why) => {
                    self.tell_refusal(peer, &why);
                    continue;
                }
            };
            tune(&SockRef::from(&stream));
            let Some(id) = self.take(stream, peer, Some(secure)) else { continue };
            let until = Instant::now() + PROVED_WITHIN;
            let oldest = self.nodes.as_mut().and_then(|door| door.unproved.add(peer.ip(), until, id));
            if let Some(oldest) = oldest {
                self.close(oldest, "too many have yet to prove themselves");
            }
        }
    }

    /// Has a connection for a client; its number.
    fn take(
        &mut self,
        mut stream: mio::net::TcpStream,
        peer: SocketAddr,
        secure: Option<Box<Secure>>,
    ) -> Option<ClientId> {
        if let Err(error) = stream.set_nodelay(true) {
            log::debug!("store client {peer}: no TCP_NODELAY: {error}");
        }
        let id = self.machine.connect();
        let index = id as usize;
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(index), both) {
            log::warn!("the store can't watch the connection from {peer}: {error}");
            self.machine.disconnect(id);
            return None;
        }
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        let connection = Connection { stream, peer, readable: false, ending: false, ended: false, secure };
        self.connections[index] = Some(connection);
        Some(id)
    }

    fn handle(&mut self, token: Token, event: &Event) {
        let Some(connection) = self.connections.get_mut(token.0).and_then(Option::as_mut) else { return };
        connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
        connection.ending |= event.is_read_closed() || event.is_error();
        let id = token.0 as ClientId;
        if event.is_writable() {
            self.write(id);
            self.flush();
        }
        self.read(id);
    }

    /// Reads and answers until there is nothing to read, the client is stalled, or its turn is over.
    fn read(&mut self, id: ClientId) {
        for _ in 0..READS_A_TURN {
            let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else {
                return;
            };
            if connection.ended {
                return self.close_if_done(id);
            }
            if !connection.readable || self.machine.is_stalled(id) {
                return;
            }
            let result = match connection.stream.read(&mut self.buffer) {
                // A node says that it ends: its bytes may have been cut off otherwise.
                Ok(0) if connection.secure.is_some() => return self.close(id, "the connection broke"),
                Ok(0) => {
                    connection.ended = true;
                    Ok(())
                }
                Ok(count) => {
                    let drained = count < READ_BYTES && cfg!(target_os = "linux") && !connection.ending;
                    connection.readable = !drained;
                    match &connection.secure {
                        None => self.machine.receive(id, &self.buffer[..count]),
                        Some(_) => self.receive_from_node(id, count),
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    return;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(_) => return self.close(id, "the connection broke"),
            };
            self.flush();
            if let Err(violation) = result {
                return self.close(id, violation.0);
            }
        }
        self.again.push(id);
    }

    /// Takes what came over a node's connection: `count` bytes in the buffer.
    fn receive_from_node(&mut self, id: ClientId, count: usize) -> std::result::Result<(), Violation> {
        let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        let (Some(secure), peer) = (&mut connection.secure, connection.peer) else { return Ok(()) };
        let was_proved = secure.is_proved();
        self.said.clear();
        let heard = secure.receive(&self.buffer[..count], &mut self.said);
        let (is_proved, has_ended) = (secure.is_proved(), secure.has_ended());
        // What TLS itself has to say, an error's reason for one.
        self.write(id);
        if let Err(error) = heard {
            self.tell_refusal(peer, &error);
            return Err(Violation("the connection is not a node's"));
        }
        if is_proved
            && !was_proved
            && let Some(door) = &mut self.nodes
        {
            door.unproved.retain(|waiting| *waiting != id);
        }
        // Who was told that may be gone.
        let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else {
            return Ok(());
        };
        connection.ended = has_ended;
        if self.said.is_empty() { Ok(()) } else { self.machine.receive(id, &self.said) }
    }

    /// Sends what the last requests made for whichever clients.
    fn flush(&mut self) {
        while let Some(id) = self.machine.next_dirty() {
            self.write(id);
        }
    }

    fn write(&mut self, id: ClientId) {
        loop {
            let was_stalled = self.machine.is_stalled(id);
            let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else {
                return;
            };
            let written = match &mut connection.secure {
                None => {
                    let mut slices = [IoSlice::new(&[]); PIECES_A_WRITE];
                    match self.machine.fill(id, &mut slices) {
                        0 => Ok(0),
                        1 => connection.stream.write(&slices[0]),
                        count => write_pieces(&connection.stream, &slices[..count]),
                    }
                }
                Some(secure) => write_secure(secure, &mut connection.stream, self.machine.unsent(id)),
            };
            match written {
                Ok(0) => return self.close_if_done(id),
                Ok(count) => self.machine.sent(id, count),
                Err(error) if would_block(&error) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return self.close(id, "the connection broke"),
            }
            if was_stalled && !self.machine.is_stalled(id) {
                if let Err(violation) = self.machine.resume(id) {
                    return self.close(id, violation.0);
                }
                // Its socket may hold bytes whose edge has passed.
                self.again.push(id);
            }
        }
    }

    /// Closes a connection whose client has said everything, once it has been told everything.
    fn close_if_done(&mut self, id: ClientId) {
        let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::as_mut) else { return };
        if !connection.ended || self.machine.has_unsent(id) {
            return;
        }
        if let Some(secure) = &mut connection.secure
            && secure.end().is_ok()
            && secure.flush(&mut connection.stream).is_ok()
            && secure.unsent_bytes() > 0
        {
            return; // until its socket takes more
        }
        self.close(id, "the client ended");
    }

    fn close(&mut self, id: ClientId, why: &str) {
        let Some(mut connection) = self.connections.get_mut(id as usize).and_then(Option::take) else {
            return;
        };
        log::debug!("store client {}: {why}", connection.peer);
        let is_told = !self.machine.has_unsent(id);
        self.machine.disconnect(id);
        self.backlog.hurry(Instant::now());
        if let Some(door) = &mut self.nodes {
            door.backlog.hurry(Instant::now());
            door.unproved.retain(|waiting| *waiting != id);
        }
        if let Some(secure) = &mut connection.secure
            && secure.is_proved()
            && is_told
        {
            // So that what was said counts as whole at the other end. A peer that doesn't read loses that.
            let _ = secure.end().map(|()| secure.flush(&mut connection.stream));
        }
    }
}

/// Encrypts what is `unsent` as soon as what was encrypted before is sent; how much of it that was.
fn write_secure<'a>(
    secure: &mut Secure,
    stream: &mut mio::net::TcpStream,
    unsent: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    secure.flush(stream)?;
    if secure.unsent_bytes() > 0 || !secure.is_proved() {
        return Ok(0);
    }
    // Short pieces go together: each record has a price.
    let mut next = Vec::new();
    for piece in unsent {
        let room = READ_BYTES - next.len();
        next.extend_from_slice(&piece[..piece.len().min(room)]);
        if next.len() == READ_BYTES {
            break;
        }
    }
    if !next.is_empty() {
        secure.send(&next).map_err(io::Error::other)?;
        secure.flush(stream)?;
    }
    Ok(next.len())
}
