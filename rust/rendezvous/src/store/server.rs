//! The store behind a listening socket: one thread, one event loop.
//!
//! Sockets are registered once, edge-triggered, for reading and writing. A read that returns less than it was asked
//! for has drained the socket on Linux (epoll(7), for stream sockets: more bytes, or the end, make a new edge), which
//! saves the second `read` of every request; elsewhere the loop reads until it would block.

use std::fmt::Display;
use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use mio::event::Event;
use mio::net::TcpStream;
use phalanx_io::{Identity, TlsServer, check_owners_are_told};
use phalanx_types::{Error, ErrorKind, Key, Network, Result};
use socket2::SockRef;

use super::admits::Admits;
use super::machine::Machine;
use super::protocol::Violation;
use super::waits::ClientId;
use crate::client::tune;
use crate::event_loop::{self, EventLoop, Limits, Service, Sockets};
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

/// The listener at which nodes come in; that of ranks is the first.
const NODES: usize = 1;

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
pub struct StoreServer(EventLoop);

impl StoreServer {
    /// Serves on `listener`, on a thread of its own. With `allowed`, connections from elsewhere are told so (STORE-9)
    /// and closed at once. An IPv4 address counts as the same when it comes mapped into IPv6.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system refuses the event queue or the thread.
    pub fn start(listener: TcpListener, allowed: Option<Vec<Network>>) -> Result<StoreServer> {
        let admits = allowed.map_or(Admits::All, |allowed| Admits::Some(allowed.into()));
        StoreServer::serve([listener], admits, None)
    }

    /// Serves processes of this one's user on `listener`, which is at an IPv4 loopback address, and other nodes on
    /// `nodes`: these see `identity`, and prove that they know the generation's `key` (STORE-10).
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
        StoreServer::serve([listener, nodes], Admits::OwnUser, Some((tls, key)))
    }

    fn serve(
        listeners: impl IntoIterator<Item = TcpListener>,
        admits: Admits,
        nodes: Option<(TlsServer, Key)>,
    ) -> Result<StoreServer> {
        let failed = |error: io::Error| Error::io("serve the store", &error);
        let limits = Limits {
            connections: usize::MAX,
            unproved: MAX_UNPROVED,
            crowded: "too many connections are not authenticated yet",
            proved_within: PROVED_WITHIN,
            late: "it didn't prove in time that it is a node of this job".into(),
        };
        let server = Server {
            sockets: Sockets::new("the store", listeners, limits).map_err(failed)?,
            admits,
            nodes,
            said: Vec::new(),
            machine: Machine::default(),
            buffer: vec![0; READ_BYTES],
        };
        EventLoop::start("phalanx-store", server).map(StoreServer).map_err(failed)
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Ends the server: returns when its thread has ended and all its sockets are closed. Further calls do nothing.
    pub fn stop(&self) {
        self.0.stop();
    }
}

struct Server {
    /// By client.
    sockets: Sockets<Connection>,
    admits: Admits,
    /// What nodes' connections speak.
    nodes: Option<(TlsServer, Key)>,
    /// What a node said, for the moment of its reading.
    said: Vec<u8>,
    machine: Machine,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
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

impl event_loop::Connection for Connection {
    fn streams(&mut self) -> Vec<&mut TcpStream> {
        vec![&mut self.stream]
    }

    fn is_proved(&self) -> bool {
        self.secure.as_ref().is_none_or(|secure| secure.is_proved())
    }
}

impl Service for Server {
    type Connection = Connection;
    const AWAKE: Duration = AWAKE;

    fn sockets(&mut self) -> &mut Sockets<Connection> {
        &mut self.sockets
    }

    fn begin(
        &mut self,
        id: usize,
        door: usize,
        mut stream: TcpStream,
        peer: SocketAddr,
    ) -> Result<Connection> {
        let secure = match &self.nodes {
            Some((tls, key)) if door == NODES => Some(Box::new(Secure::of_server(tls, key.clone())?)),
            _ => {
                self.admits.admit(&mut stream, peer.ip())?;
                None
            }
        };
        match &secure {
            Some(_) => tune(&SockRef::from(&stream)),
            None => {
                if let Err(error) = stream.set_nodelay(true) {
                    log::debug!("store client {peer}: no TCP_NODELAY: {error}");
                }
            }
        }
        self.machine.connect(id as ClientId);
        Ok(Connection { stream, peer, readable: false, ending: false, ended: false, secure })
    }

    fn turn(&mut self, id: usize, event: Option<&Event>) -> Result<bool> {
        if let Some(event) = event
            && let Some(connection) = self.sockets.get_mut(id)
        {
            connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
            connection.ending |= event.is_read_closed() || event.is_error();
            if event.is_writable() {
                self.write(id as ClientId);
                self.flush();
            }
        }
        self.read(id as ClientId)
    }

    fn closed(&mut self, id: usize, mut connection: Connection, why: &dyn Display) {
        log::debug!("store client {}: {why}", connection.peer);
        let is_told = !self.machine.has_unsent(id as ClientId);
        self.machine.disconnect(id as ClientId);
        if let Some(secure) = &mut connection.secure
            && secure.is_proved()
            && is_told
        {
            // So that what was said counts as whole at the other end. A peer that doesn't read loses that.
            let _ = secure.end().map(|()| secure.flush(&mut connection.stream));
        }
    }
}

impl Server {
    /// Reads and answers until there is nothing to read, the client is stalled, or its turn is over, which is returned.
    fn read(&mut self, id: ClientId) -> Result<bool> {
        for _ in 0..READS_A_TURN {
            let Some(connection) = self.sockets.get_mut(id as usize) else { return Ok(false) };
            if connection.ended {
                self.close_if_done(id);
                return Ok(false);
            }
            if !connection.readable || self.machine.is_stalled(id) {
                return Ok(false);
            }
            match connection.stream.read(&mut self.buffer) {
                // A node says that it ends: its bytes may have been cut off otherwise.
                Ok(0) if connection.secure.is_some() => return Err(broke()),
                Ok(0) => connection.ended = true,
                Ok(count) => {
                    let drained = count < READ_BYTES && cfg!(target_os = "linux") && !connection.ending;
                    connection.readable = !drained;
                    let heard = match &connection.secure {
                        None => self.machine.receive(id, &self.buffer[..count]).map_err(Error::from),
                        Some(_) => self.receive_from_node(id, count),
                    };
                    self.flush();
                    heard?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    return Ok(false);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(broke()),
            }
        }
        Ok(true)
    }

    /// Takes what came over a node's connection: `count` bytes in the buffer.
    fn receive_from_node(&mut self, id: ClientId, count: usize) -> Result<()> {
        let Some(connection) = self.sockets.get_mut(id as usize) else { return Ok(()) };
        let (Some(secure), peer) = (&mut connection.secure, connection.peer) else { return Ok(()) };
        self.said.clear();
        let heard = secure.receive(&self.buffer[..count], &mut self.said);
        let has_ended = secure.has_ended();
        // What TLS itself has to say, an error's reason for one.
        self.write(id);
        heard.inspect_err(|why| self.sockets.refused(peer, why))?;
        // Who was told that may be gone.
        let Some(connection) = self.sockets.get_mut(id as usize) else { return Ok(()) };
        connection.ended = has_ended;
        if self.said.is_empty() { Ok(()) } else { Ok(self.machine.receive(id, &self.said)?) }
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
            let Some(connection) = self.sockets.get_mut(id as usize) else { return };
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
                Err(_) => return self.close(id as usize, &broke()),
            }
            if was_stalled && !self.machine.is_stalled(id) {
                if let Err(violation) = self.machine.resume(id) {
                    return self.close(id as usize, &violation.0);
                }
                // Its socket may hold bytes whose edge has passed.
                self.sockets.again(id as usize);
            }
        }
    }

    /// Closes a connection whose client has said everything, once it has been told everything.
    fn close_if_done(&mut self, id: ClientId) {
        let Some(connection) = self.sockets.get_mut(id as usize) else { return };
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
        self.close(id as usize, &"the client ended");
    }
}

fn broke() -> Error {
    Error::new(ErrorKind::Closed, "the connection broke")
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Error {
        Error::new(ErrorKind::Protocol, violation.0)
    }
}

/// Encrypts what is `unsent` as soon as what was encrypted before is sent; how much of it that was.
fn write_secure<'a>(
    secure: &mut Secure,
    stream: &mut TcpStream,
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
