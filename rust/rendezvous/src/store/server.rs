//! The store behind a listening socket: one thread, one event loop.
//!
//! Sockets are registered once, edge-triggered, for reading and writing. A read that returns less than it was asked
//! for has drained the socket on Linux (epoll(7), for stream sockets: more bytes, or the end, make a new edge), which
//! saves the second `read` of every request; elsewhere the loop reads until it would block.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::{Events, Interest, Poll, Token, Waker};
use phalanx_types::{Error, Result};
use rustc_hash::FxHashSet;

use super::machine::Machine;
use super::state::ClientId;

/// How many connections may wait to be accepted: all ranks of a job connect at once. The kernel caps it at
/// `net.core.somaxconn`.
const BACKLOG: i32 = 16 * 1024;
/// How much is read at once.
const READ_BYTES: usize = 64 * 1024;
/// How much one client may send before the others' turn.
const READS_A_TURN: usize = 16;
const ACCEPTS_A_TURN: usize = 128;
/// How long to wait when the system refuses a new connection for lack of files or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

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
    stopping: Arc<AtomicBool>,
    waker: Waker,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl StoreServer {
    /// Serves on `listener`, on a thread of its own. With `allowed`, connections from other addresses are closed at
    /// once; an IPv4 address counts as the same when it comes mapped into IPv6.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system refuses the event queue or the thread.
    pub fn start(listener: TcpListener, allowed: Option<Vec<IpAddr>>) -> Result<StoreServer> {
        let failed = |error: io::Error| Error::io("serve the store", &error);
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        socket2::SockRef::from(&listener).listen(BACKLOG).map_err(failed)?;
        let mut listener = mio::net::TcpListener::from_std(listener);
        let poll = Poll::new().map_err(failed)?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).map_err(failed)?;
        let waker = Waker::new(poll.registry(), WAKER).map_err(failed)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let allowed = allowed.map(|all| all.iter().map(IpAddr::to_canonical).collect());
        let mut event_loop = EventLoop {
            poll,
            listener,
            allowed,
            stopping: Arc::clone(&stopping),
            machine: Machine::default(),
            connections: Vec::new(),
            again: Vec::new(),
            accept_at: None,
            starved: false,
            buffer: vec![0; READ_BYTES],
        };
        let thread = std::thread::Builder::new()
            .name("phalanx-store".into())
            .spawn(move || {
                if let Err(error) = event_loop.run() {
                    log::error!("the store at {address} ended: {error}");
                }
            })
            .map_err(failed)?;
        Ok(StoreServer { address, stopping, waker, thread: Mutex::new(Some(thread)) })
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the server: returns when its thread has ended and all its sockets are closed. Further calls do nothing.
    pub fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        self.stopping.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            log::error!("can't stop the store at {}: {error}", self.address);
            return;
        }
        if thread.join().is_err() {
            log::error!("the store at {} ended in a panic", self.address);
        }
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.stop();
    }
}

struct EventLoop {
    poll: Poll,
    listener: mio::net::TcpListener,
    allowed: Option<FxHashSet<IpAddr>>,
    stopping: Arc<AtomicBool>,
    machine: Machine,
    /// Indexed by client.
    connections: Vec<Option<Connection>>,
    /// Clients whose turn was over before their bytes were.
    again: Vec<ClientId>,
    /// When to accept although no edge will say so.
    accept_at: Option<Instant>,
    /// The system refuses new connections, and the log says so.
    starved: bool,
    buffer: Vec<u8>,
}

struct Connection {
    stream: mio::net::TcpStream,
    peer: SocketAddr,
    /// There may be bytes to read that no new edge will announce.
    readable: bool,
    /// The peer has closed its end, so a short read doesn't mean that nothing follows.
    ending: bool,
}

impl EventLoop {
    fn run(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !self.stopping.load(Ordering::Acquire) {
            match self.poll.poll(&mut events, self.patience()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => result?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    token => self.handle(token, event),
                }
            }
            if self.accept_at.is_some_and(|at| at <= Instant::now()) {
                self.accept();
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
            self.accept_at.map(|at| at.saturating_duration_since(Instant::now()))
        } else {
            Some(Duration::ZERO)
        }
    }

    fn accept(&mut self) {
        self.accept_at = None;
        for _ in 0..ACCEPTS_A_TURN {
            match self.listener.accept() {
                Ok((stream, peer)) => {
                    self.starved = false;
                    self.admit(stream, peer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The peer gave up, or a packet disturbed the call: the next may be fine.
                Err(error) if is_about_one_connection(&error) => {}
                Err(error) => {
                    if !std::mem::replace(&mut self.starved, true) {
                        log::warn!("the store can't accept connections at the moment: {error}");
                    }
                    self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            }
        }
        self.accept_at = Some(Instant::now());
    }

    fn admit(&mut self, mut stream: mio::net::TcpStream, peer: SocketAddr) {
        let is_allowed = |allowed: &FxHashSet<IpAddr>| allowed.contains(&peer.ip().to_canonical());
        if !self.allowed.as_ref().is_none_or(is_allowed) {
            log::warn!("the store refused a connection from {peer}, which is not a node of this job");
            return;
        }
        if let Err(error) = stream.set_nodelay(true) {
            log::debug!("store client {peer}: no TCP_NODELAY: {error}");
        }
        let id = self.machine.connect();
        let index = id as usize;
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(&mut stream, Token(index), both) {
            log::warn!("the store can't watch the connection from {peer}: {error}");
            self.machine.disconnect(id);
            return;
        }
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(Connection { stream, peer, readable: false, ending: false });
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
            if !connection.readable || self.machine.is_stalled(id) {
                return;
            }
            let result = match connection.stream.read(&mut self.buffer) {
                Ok(0) => return self.close(id, "the client ended"),
                Ok(count) => {
                    let drained = count < READ_BYTES && cfg!(target_os = "linux") && !connection.ending;
                    connection.readable = !drained;
                    self.machine.receive(id, &self.buffer[..count])
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
            let unsent = self.machine.unsent(id);
            if unsent.is_empty() {
                return;
            }
            match connection.stream.write(unsent) {
                Ok(count) => self.machine.sent(id, count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
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

    fn close(&mut self, id: ClientId, why: &str) {
        if let Some(connection) = self.connections.get_mut(id as usize).and_then(Option::take) {
            log::debug!("store client {}: {why}", connection.peer);
            self.machine.disconnect(id);
            // Whoever waits for a file descriptor may have this one.
            if let Some(at) = &mut self.accept_at {
                *at = Instant::now();
            }
        }
    }
}

fn is_about_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::TimedOut
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}
