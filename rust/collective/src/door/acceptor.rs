//! Who comes to a rank's door: all handshakes at once, on the door's thread.
//!
//! - GROUP-1 (nobody-waits): a stranger that is silent, slow or one of very many keeps no rank waiting: every
//!   connection has [`PATIENCE`] in all, is never waited for, and where there are too many the oldest of the busiest
//!   origin goes.

use std::io::{self, ErrorKind as IoKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use phalanx_io::{Backlog, TlsServer, Unproved};
use phalanx_types::{Error, ErrorKind, Key, Result};
use rustix::net::sockopt::socket_peercred;

use crate::door::connections::{Connections, LOCAL};
use crate::door::handshake::{HELLO_BYTES, Hello, PROOF_BYTES, Welcome};
use crate::door::link::Link;
use crate::door::probe::{Probe, give_descriptor};
use crate::door::tcp;
use crate::forks::{Opening, Private};

/// How long a connection may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many connections may be strangers at a time, besides one for each rank of the group.
const MOST_STRANGERS: usize = 256;

/// Those at one rank's door.
pub(crate) struct Acceptor {
    me: usize,
    world_size: usize,
    key: Key,
    /// How many connections two ranks of different hosts have at most.
    numbers: u32,
    /// Where connections between hosts are encrypted.
    tls: Option<TlsServer>,
    /// While the group forms.
    probe: Option<Probe>,
    visitors: Unproved<Origin, Visitor>,
    local: Backlog,
    remote: Backlog,
}

impl Acceptor {
    pub(crate) fn new(
        me: usize,
        world_size: usize,
        key: Key,
        numbers: u32,
        tls: Option<TlsServer>,
    ) -> Result<Acceptor> {
        Ok(Acceptor {
            me,
            world_size,
            key,
            numbers,
            tls,
            probe: Some(Probe::new(world_size)?),
            visitors: Unproved::new(MOST_STRANGERS + world_size),
            local: Backlog::new("a rank"),
            remote: Backlog::new("a rank"),
        })
    }

    /// Nobody connects inside the host any more.
    pub(crate) fn has_formed(&mut self) {
        self.probe = None;
        // It would be due for good.
        self.local = Backlog::new("a rank");
    }

    /// Accepts who stands at the listeners, and hears those who have something to say. Strangers, and ranks that can't
    /// share memory, are let go.
    pub(crate) fn advance(
        &mut self,
        connections: &Connections,
        tcp: &TcpListener,
        unix: Option<&UnixListener>,
        now: Instant,
    ) {
        if let Some(unix) = unix
            && self.local.due().is_none_or(|due| due <= now)
        {
            while let Some((stream, _)) = self.local.next(now, || privately(|| unix.accept())) {
                let user = socket_peercred(&*stream).map_or(u32::MAX, |peer| peer.uid.as_raw());
                self.admit(Origin::User(user), Ok(Socket::Local(stream)), now);
            }
        }
        if self.remote.due().is_none_or(|due| due <= now) {
            while let Some((stream, peer)) = self.remote.next(now, || privately(|| tcp.accept())) {
                let from = Origin::Address(peer.ip().to_canonical());
                let link = self.link(stream);
                self.admit(from, link.map(Socket::Remote), now);
            }
        }
        let mut visitors = std::mem::replace(&mut self.visitors, Unproved::new(0));
        visitors.retain(|visitor| match visitor.is_ready.then(|| visitor.advance(self, connections)) {
            None => true,
            Some(Ok(done)) => !done,
            Some(Err(error)) => {
                log::debug!("rank {}: a connection failed: {error}", self.me);
                false
            }
        });
        while visitors.expired(now).is_some() {}
        self.visitors = visitors;
    }

    fn link(&self, stream: Private<TcpStream>) -> Result<Link> {
        tcp::prepare(&stream)?;
        match &self.tls {
            Some(tls) => Link::accept(stream, tls),
            None => Ok(Link::plain(stream)),
        }
    }

    fn admit(&mut self, from: Origin, socket: Result<Socket>, now: Instant) {
        let socket = match socket.and_then(Socket::nonblocking) {
            Ok(socket) => socket,
            Err(error) => return log::debug!("rank {}: a connection can't be used: {error}", self.me),
        };
        let (inbox, stage) = ([0; HELLO_BYTES], Stage::Silent);
        let visitor = Visitor { socket: Some(socket), is_ready: true, inbox, received: 0, stage };
        if self.visitors.add(from, now + PATIENCE, visitor).is_some() {
            log::debug!("rank {}: too many unauthenticated connections from {from:?}", self.me);
        }
    }

    /// When to go on although no socket is ready.
    pub(crate) fn due(&self) -> Option<Instant> {
        [self.visitors.due(), self.local.due(), self.remote.due()].into_iter().flatten().min()
    }

    /// Whether its listener is to be looked at: one from which nothing can be accepted is always ready.
    pub(crate) fn is_resting(&self, now: Instant) -> bool {
        self.local.due().max(self.remote.due()).is_some_and(|due| due > now)
    }

    /// What to look at, in the order in which [`Acceptor::set_ready`] wants to hear of it.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.visitors.iter().filter_map(Visitor::fd)
    }

    pub(crate) fn set_ready(&mut self, mut ready: impl Iterator<Item = bool>) {
        self.visitors.retain(|visitor| {
            visitor.is_ready = ready.next().unwrap_or(true);
            true
        });
    }
}

/// Accepts a connection, without waiting for one.
fn privately<T: AsRawFd, A>(accept: impl FnOnce() -> io::Result<(T, A)>) -> io::Result<(Private<T>, A)> {
    let opening = Opening::begin();
    accept().map(|(socket, address)| (opening.private(socket), address))
}

/// Where a connection comes from, as far as one can tell that doesn't speak yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    Address(IpAddr),
    User(u32),
}

enum Socket {
    Local(Private<UnixStream>),
    Remote(Link),
}

impl Socket {
    fn nonblocking(self) -> Result<Socket> {
        let set = match &self {
            Socket::Local(stream) => stream.set_nonblocking(true),
            Socket::Remote(_) => Ok(()),
        };
        set.map(|()| self).map_err(|error| Error::io("set up a socket", &error))
    }

    /// What only the two ends of it know.
    fn binding(&self) -> Result<Vec<u8>> {
        match self {
            Socket::Local(_) => Ok(Vec::new()),
            Socket::Remote(link) => link.binding(),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Local(stream) => stream.read(bytes),
            Socket::Remote(link) => link.read(bytes),
        }
    }

    /// A few bytes on a new connection always fit its buffer: who has not read those before is let go.
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        let sent = match self {
            Socket::Local(stream) => stream.write(bytes),
            Socket::Remote(link) => link.write(bytes),
        };
        match sent {
            Ok(count) if count == bytes.len() => Ok(()),
            Ok(_) => Err(Error::new(ErrorKind::Closed, "it doesn't read")),
            Err(error) => Err(Error::io("answer", &error)),
        }
    }
}

/// One that has connected and is no rank yet.
struct Visitor {
    /// Until it is a rank's.
    socket: Option<Socket>,
    /// Whether there may be something to hear.
    is_ready: bool,
    inbox: [u8; HELLO_BYTES],
    received: usize,
    stage: Stage,
}

enum Stage {
    /// Has not said who it is.
    Silent,
    /// Has to prove it.
    Asked(Welcome),
    /// Is that rank, and may share memory.
    Probed(Hello),
}

impl Stage {
    fn awaits(&self) -> usize {
        match self {
            Stage::Silent => HELLO_BYTES,
            Stage::Asked(_) => PROOF_BYTES,
            Stage::Probed(_) => size_of::<[u8; 16]>(),
        }
    }
}

impl Visitor {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(match &self.socket {
            Some(Socket::Local(stream)) => stream.as_fd(),
            Some(Socket::Remote(link)) => link.as_fd(),
            None => return None,
        })
    }

    /// Hears what there is; whether it is done with here.
    fn advance(&mut self, door: &Acceptor, connections: &Connections) -> Result<bool> {
        while let Some(socket) = &mut self.socket {
            let awaited = self.stage.awaits();
            match socket.read(&mut self.inbox[self.received..awaited]) {
                Ok(0) => return Err(Error::new(ErrorKind::Closed, "it ended before it authenticated")),
                Ok(count) => self.received += count,
                // GROUP-1: who sends what means nothing is left for the others' sake, too.
                Err(error) if [IoKind::WouldBlock, IoKind::Interrupted].contains(&error.kind()) => {
                    return Ok(false);
                }
                Err(error) => return Err(Error::io("listen", &error)),
            }
            if self.received == awaited {
                self.received = 0;
                self.hear(door, connections)?;
            }
        }
        Ok(true)
    }

    /// Hears a whole message.
    fn hear(&mut self, door: &Acceptor, connections: &Connections) -> Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        match &self.stage {
            Stage::Silent => {
                let (welcome, answer) = Welcome::hear(self.inbox, &door.key, socket.binding()?)?;
                socket.send(&answer)?;
                self.stage = Stage::Asked(welcome);
            }
            Stage::Asked(welcome) => {
                let hello = welcome.prove(&self.inbox[..PROOF_BYTES], &door.key)?;
                let is_local = matches!(socket, Socket::Local(_));
                if hello.to as usize != door.me || (hello.connection == LOCAL) != is_local {
                    return Err(Error::new(ErrorKind::Refused, "a connection for another rank"));
                }
                match socket {
                    Socket::Local(stream) => {
                        let probe = door.probe.as_ref().ok_or_else(has_formed)?;
                        give_descriptor(stream, probe.file())?;
                        self.stage = Stage::Probed(hello);
                    }
                    Socket::Remote(_) => self.arrive(hello, door, connections)?,
                }
            }
            Stage::Probed(hello) => {
                // GROUP-6: the peer says what it wrote; we look whether it is in the memory, and say what we wrote.
                let hello = *hello;
                let (written, _) = self.inbox.split_first_chunk::<16>().ok_or_else(no_rank)?;
                let probe = door.probe.as_ref().ok_or_else(has_formed)?;
                if !probe.holds(hello.from as usize, written)? {
                    socket.send(&[0; 16])?;
                    return Err(Error::new(ErrorKind::Unreachable, "it doesn't share this memory"));
                }
                socket.send(&probe.nonce())?;
                self.arrive(hello, door, connections)?;
            }
        }
        Ok(())
    }

    /// It is that rank.
    fn arrive(&mut self, hello: Hello, door: &Acceptor, connections: &Connections) -> Result<()> {
        let from = hello.from as usize;
        if from >= door.world_size || from == door.me {
            return Err(no_rank());
        }
        match self.socket.take() {
            Some(Socket::Local(stream)) => {
                stream.set_nonblocking(false).map_err(|error| Error::io("accept", &error))?;
                connections.admit_local(from, stream);
                Ok(())
            }
            Some(Socket::Remote(link)) if hello.connection < door.numbers => {
                connections.admit((from, hello.connection), link)
            }
            Some(Socket::Remote(_)) => Err(Error::new(ErrorKind::Protocol, "there is no such connection")),
            None => Ok(()),
        }
    }
}

fn has_formed() -> Error {
    Error::new(ErrorKind::Refused, "the group has formed")
}

fn no_rank() -> Error {
    Error::new(ErrorKind::Protocol, "there is no such rank")
}
