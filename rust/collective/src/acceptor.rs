//! Who comes to a rank's door while its group comes together: all handshakes at once, on one thread.
//!
//! - DOOR-1 (nobody-waits): a stranger that is silent, slow or one of very many keeps no rank waiting: every connection
//!   has [`PATIENCE`] in all, is never waited for, and where there are too many the oldest of the busiest origin goes.

use std::collections::HashMap;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_io::{Backlog, TlsServer, Unproved};
use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;

use crate::handshake::{HELLO_BYTES, Hello, PROOF_BYTES, Welcome};
use crate::link::Link;
use crate::probe::{Probe, give_descriptor};

/// How long a connection may take to introduce itself.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the thread that accepts looks whether it is still needed.
const PAUSE: Duration = Duration::from_millis(5);
/// How many connections may be strangers at a time, besides one for each rank of the group.
const MOST_STRANGERS: usize = 256;
/// A number that no connection between hosts has.
pub(crate) const LOCAL_CONNECTION: u32 = u32::MAX;

/// The connections that other ranks have made to this one.
#[derive(Default)]
pub(crate) struct Arrived {
    pub(crate) local: HashMap<usize, UnixStream>,
    pub(crate) remote: HashMap<(usize, u32), Link>,
}

/// One rank's door.
pub(crate) struct Acceptor {
    me: usize,
    world_size: usize,
    key: Key,
    /// Where connections between hosts are encrypted.
    tls: Option<TlsServer>,
    probe: Probe,
    arrived: Mutex<Arrived>,
    changed: Condvar,
    is_closed: AtomicBool,
}

impl Acceptor {
    pub(crate) fn new(me: usize, world_size: usize, key: Key, tls: Option<TlsServer>) -> Result<Acceptor> {
        Ok(Acceptor {
            me,
            world_size,
            key,
            tls,
            probe: Probe::new(world_size)?,
            arrived: Mutex::default(),
            changed: Condvar::new(),
            is_closed: AtomicBool::new(false),
        })
    }

    /// Has [`Acceptor::serve`] return.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Accepts until it is closed. Strangers, and ranks that can't share memory, are let go.
    pub(crate) fn serve(&self, tcp: &TcpListener, unix: &UnixListener) {
        let pause = Timespec::try_from(PAUSE).ok();
        let (mut local, mut remote) = (Backlog::new("a rank"), Backlog::new("a rank"));
        let mut visitors = Unproved::new(MOST_STRANGERS + self.world_size);
        while !self.is_closed.load(Ordering::Relaxed) {
            if local.due().max(remote.due()).is_some_and(|due| due > Instant::now()) {
                // A connection that can't be accepted keeps its listener ready.
                phalanx_io::pause(PAUSE, Deadline::never());
            }
            let ready: Vec<bool> = {
                let all =
                    [tcp.as_fd(), unix.as_fd()].into_iter().chain(visitors.iter().filter_map(Visitor::fd));
                let mut fds: Vec<_> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
                let _ = poll(&mut fds, pause.as_ref());
                fds.iter().skip(2).map(|fd| !fd.revents().is_empty()).collect()
            };
            let mut ready = ready.into_iter();
            visitors.retain(|visitor| {
                visitor.is_ready = ready.next().unwrap_or(true);
                true
            });
            let now = Instant::now();
            while let Some((stream, _)) = local.next(now, || unix.accept()) {
                let user = socket_peercred(&stream).map_or(u32::MAX, |peer| peer.uid.as_raw());
                self.admit(&mut visitors, Origin::User(user), Ok(Socket::Local(stream)), now);
            }
            while let Some((stream, peer)) = remote.next(now, || tcp.accept()) {
                let from = Origin::Address(peer.ip().to_canonical());
                self.admit(&mut visitors, from, self.link(stream).map(Socket::Remote), now);
            }
            visitors.retain(|visitor| match visitor.is_ready.then(|| visitor.advance(self)) {
                None => true,
                Some(Ok(done)) => !done,
                Some(Err(error)) => {
                    log::debug!("rank {}: a connection came to nothing: {error}", self.me);
                    false
                }
            });
            while visitors.expired(now).is_some() {}
        }
    }

    fn link(&self, stream: TcpStream) -> Result<Link> {
        match &self.tls {
            Some(tls) => Link::accept(stream, tls),
            None => Ok(Link::plain(stream)),
        }
    }

    fn admit(
        &self,
        visitors: &mut Unproved<Origin, Visitor>,
        from: Origin,
        socket: Result<Socket>,
        now: Instant,
    ) {
        let socket = match socket.and_then(Socket::nonblocking) {
            Ok(socket) => socket,
            Err(error) => return log::debug!("rank {}: a connection can't be used: {error}", self.me),
        };
        let (inbox, stage) = ([0; HELLO_BYTES], Stage::Silent);
        let visitor = Visitor { socket: Some(socket), is_ready: true, inbox, received: 0, stage };
        if visitors.add(from, now + PATIENCE, visitor).is_some() {
            log::debug!("rank {}: too many strangers connect from {from:?}", self.me);
        }
    }

    /// The connections that these ranks make, once all are there.
    ///
    /// # Errors
    /// [`ErrorKind::Timeout`] at the deadline, with a rank that hasn't connected.
    pub(crate) fn wait_for(
        &self,
        local: &[usize],
        remote: &[usize],
        connections: u32,
        deadline: Deadline,
    ) -> Result<Arrived> {
        let mut arrived = self.arrived();
        loop {
            let missing = local.iter().find(|rank| !arrived.local.contains_key(rank)).or_else(|| {
                remote
                    .iter()
                    .find(|rank| (0..=connections).any(|one| !arrived.remote.contains_key(&(**rank, one))))
            });
            let Some(missing) = missing else { return Ok(std::mem::take(&mut *arrived)) };
            let left = deadline.left().unwrap_or(Duration::from_secs(3600));
            if left.is_zero() {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    format!("rank {missing} has not connected in time"),
                ));
            }
            arrived = self.changed.wait_timeout(arrived, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a connection comes from, as far as one can tell that doesn't speak yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Origin {
    Address(IpAddr),
    User(u32),
}

enum Socket {
    Local(UnixStream),
    Remote(Link),
}

impl Socket {
    fn nonblocking(self) -> Result<Socket> {
        let set = match &self {
            Socket::Local(stream) => stream.set_nonblocking(true),
            Socket::Remote(link) => link.socket().set_nonblocking(true),
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
    fn advance(&mut self, door: &Acceptor) -> Result<bool> {
        while let Some(socket) = &mut self.socket {
            let awaited = self.stage.awaits();
            match socket.read(&mut self.inbox[self.received..awaited]) {
                Ok(0) => return Err(Error::new(ErrorKind::Closed, "it ended before it was a rank's")),
                Ok(count) => self.received += count,
                // DOOR-1: who sends what means nothing is left for the others' sake, too.
                Err(error) if [IoKind::WouldBlock, IoKind::Interrupted].contains(&error.kind()) => {
                    return Ok(false);
                }
                Err(error) => return Err(Error::io("listen", &error)),
            }
            if self.received == awaited {
                self.received = 0;
                self.hear(door)?;
            }
        }
        Ok(true)
    }

    /// Hears a whole message.
    fn hear(&mut self, door: &Acceptor) -> Result<()> {
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
                if hello.to as usize != door.me || (hello.connection == LOCAL_CONNECTION) != is_local {
                    return Err(Error::new(ErrorKind::Refused, "a connection for another rank"));
                }
                match socket {
                    Socket::Local(stream) => {
                        give_descriptor(stream, door.probe.descriptor())?;
                        self.stage = Stage::Probed(hello);
                    }
                    Socket::Remote(_) => self.arrive(hello, door)?,
                }
            }
            Stage::Probed(hello) => {
                // BOOT-1: the peer says what it wrote; we look whether it is in the memory, and say what we wrote.
                let hello = *hello;
                let (written, _) = self.inbox.split_first_chunk::<16>().ok_or_else(no_rank)?;
                if !door.probe.holds(hello.from as usize, written)? {
                    socket.send(&[0; 16])?;
                    return Err(Error::new(ErrorKind::Unreachable, "it doesn't share this memory"));
                }
                socket.send(&door.probe.nonce())?;
                self.arrive(hello, door)?;
            }
        }
        Ok(())
    }

    /// It is that rank.
    fn arrive(&mut self, hello: Hello, door: &Acceptor) -> Result<()> {
        let from = hello.from as usize;
        if from >= door.world_size {
            return Err(no_rank());
        }
        let Some(socket) = self.socket.take() else { return Ok(()) };
        let mut arrived = door.arrived();
        match socket {
            Socket::Local(stream) => {
                stream.set_nonblocking(false).map_err(|error| Error::io("accept", &error))?;
                drop(arrived.local.insert(from, stream));
            }
            Socket::Remote(link) => drop(arrived.remote.insert((from, hello.connection), link)),
        }
        door.changed.notify_all();
        Ok(())
    }
}

fn no_rank() -> Error {
    Error::new(ErrorKind::Protocol, "there is no such rank")
}
