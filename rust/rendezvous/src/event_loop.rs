//! What servers over sockets have in common: one thread, one loop, a table of connections. A service has the protocol.
//!
//! - HUB-6 (turns): a connection that has more to do has one next turn, after the others had theirs.
//! - HUB-7 (gone-is-gone): one that is closed, in its own turn or another's, has no turn any more. A turn without a
//!   cause does no harm: an event may be told that was meant for an older connection of the same number.
//! - HUB-8 (proved-in-time): who hasn't proved itself in time, or is one too many of those, is closed.
//! - HUB-9 (clean-stop): after `stop` returns, the thread has ended, and all sockets are closed.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::{self, ErrorKind as IoKind};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token, Waker};
use phalanx_io::{Backlog, Refusals, Unproved, raise_descriptor_limit, widen_backlog};
use phalanx_types::{Error, ErrorKind, Result};

/// A connection has two tokens: twice its number for its first socket, one more for its second.
const SOCKETS: usize = 2;
/// The listeners' tokens are those before it.
const WAKER: usize = usize::MAX;

/// What a loop does with the sockets that it watches. It is called on the loop's thread, and must not block.
pub(crate) trait Service: Send + 'static {
    /// One of its connections.
    type Connection: Connection;
    /// How long the loop looks for more before it sleeps.
    const AWAKE: Duration = Duration::ZERO;

    /// The service's sockets.
    fn sockets(&mut self) -> &mut Sockets<Self::Connection>;

    /// Somebody has connected to the listener `door`, and is to be the connection `id`.
    ///
    /// # Errors
    /// Why he is refused.
    fn begin(
        &mut self,
        id: usize,
        door: usize,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> Result<Self::Connection>;

    /// Moves what can be moved, at the connection's beginning, at an event, or where there was more to do; whether
    /// there still is.
    ///
    /// # Errors
    /// Why it is to be closed.
    fn turn(&mut self, id: usize, event: Option<&Event>) -> Result<bool>;

    /// A connection is closed, and has the number no more.
    fn closed(&mut self, id: usize, connection: Self::Connection, why: &dyn Display);

    /// Closes a connection.
    fn close(&mut self, id: usize, why: &dyn Display) {
        if let Some(connection) = self.sockets().remove(id) {
            self.closed(id, connection, why);
        }
    }
}

/// A connection of a service.
pub(crate) trait Connection: Send + 'static {
    /// Its sockets: one, or two.
    fn streams(&mut self) -> Vec<&mut TcpStream>;

    /// Whether its peer has proved itself, or doesn't have to.
    fn is_proved(&self) -> bool;
}

/// How much a service takes of its peers.
pub(crate) struct Limits {
    /// How many connections it has.
    pub(crate) connections: usize,
    /// How many of them may have yet to prove themselves.
    pub(crate) unproved: usize,
    /// Why one is closed that is one too many of those.
    pub(crate) crowded: &'static str,
    /// How long one may take to prove itself.
    pub(crate) proved_within: Duration,
    /// Why one is closed that took longer.
    pub(crate) late: String,
}

/// The sockets of a service: listeners, and connections by number. Numbers are small and used again.
pub(crate) struct Sockets<C> {
    /// Whose, for people.
    of: &'static str,
    poll: Poll,
    doors: Vec<Door>,
    connections: Vec<Option<C>>,
    vacant: Vec<usize>,
    limits: Limits,
    unproved: Unproved<IpAddr, usize>,
    /// Connections that have more to do.
    again: BTreeSet<usize>,
    refusals: Refusals,
}

struct Door {
    listener: mio::net::TcpListener,
    backlog: Backlog,
}

impl<C: Connection> Sockets<C> {
    /// Those of `of`, as people call it, which listens at `doors`.
    pub(crate) fn new(
        of: &'static str,
        doors: impl IntoIterator<Item = TcpListener>,
        limits: Limits,
    ) -> io::Result<Sockets<C>> {
        raise_descriptor_limit();
        let poll = Poll::new()?;
        let door = |(listener, number): (TcpListener, usize)| {
            listener.set_nonblocking(true)?;
            widen_backlog(&listener)?;
            let mut listener = mio::net::TcpListener::from_std(listener);
            poll.registry().register(&mut listener, Token(WAKER - number), Interest::READABLE)?;
            Ok(Door { listener, backlog: Backlog::new(of) })
        };
        let doors = doors.into_iter().zip(1..).map(door).collect::<io::Result<_>>()?;
        Ok(Sockets {
            of,
            poll,
            doors,
            connections: Vec::new(),
            vacant: Vec::new(),
            unproved: Unproved::new(limits.unproved),
            limits,
            again: BTreeSet::new(),
            refusals: Refusals::default(),
        })
    }

    /// The connection of this number.
    pub(crate) fn get_mut(&mut self, id: usize) -> Option<&mut C> {
        self.connections.get_mut(id)?.as_mut()
    }

    /// Has a connection come to its turn without an event.
    pub(crate) fn again(&mut self, id: usize) {
        self.again.insert(id);
    }

    /// Tells people, not often, that a connection from `peer` was refused.
    pub(crate) fn refused(&mut self, peer: SocketAddr, why: &dyn Display) {
        let text = format_args!("{} refused a connection from {peer}: {why}", self.of);
        self.refusals.log(Instant::now(), text);
    }

    /// Takes out the connection of this number.
    pub(crate) fn remove(&mut self, id: usize) -> Option<C> {
        let connection = self.connections.get_mut(id)?.take()?;
        self.vacant.push(id);
        self.unproved.retain(|waiting| *waiting != id);
        let now = Instant::now();
        self.doors.iter_mut().for_each(|door| door.backlog.hurry(now));
        Some(connection)
    }

    /// A number that no connection has, for one more.
    fn reserve(&mut self) -> Result<usize> {
        let most = self.limits.connections;
        if self.connections.len() - self.vacant.len() >= most {
            return Err(Error::new(ErrorKind::Refused, format!("it has {most} connections")));
        }
        Ok(self.vacant.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        }))
    }

    /// Keeps a connection and watches it; who has to go for it.
    fn keep(&mut self, id: usize, connection: C, from: IpAddr) -> Result<Option<usize>> {
        let connection = self.connections[id].insert(connection);
        for (stream, token) in connection.streams().into_iter().zip(SOCKETS * id..) {
            let both = Interest::READABLE | Interest::WRITABLE;
            let watched = self.poll.registry().register(stream, Token(token), both);
            watched.map_err(|e| Error::io("watch a connection", &e))?;
        }
        if connection.is_proved() {
            return Ok(None);
        }
        Ok(self.unproved.add(from, Instant::now() + self.limits.proved_within, id))
    }

    /// How long to wait for events.
    fn patience(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let doors = self.doors.iter().filter_map(|door| door.backlog.due());
        let due = doors.chain(self.unproved.due()).min();
        due.map(|at| at.saturating_duration_since(Instant::now()))
    }
}

/// The thread of a service; it stops when dropped.
#[derive(Debug)]
pub(crate) struct EventLoop {
    /// What people call it.
    what: String,
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    waker: Waker,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EventLoop {
    /// Serves on a thread of this name.
    pub(crate) fn start(name: &str, mut service: impl Service) -> io::Result<EventLoop> {
        let sockets = service.sockets();
        let first = sockets.doors.first().ok_or(IoKind::InvalidInput)?;
        let address = first.listener.local_addr()?;
        let what = format!("{} at {address}", sockets.of);
        let waker = Waker::new(sockets.poll.registry(), Token(WAKER))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let (called, told) = (what.clone(), Arc::clone(&stopping));
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            if let Err(error) = run(&mut service, &told) {
                log::error!("{called} ended: {error}");
            }
        })?;
        Ok(EventLoop { what, address, stopping, waker, thread: Mutex::new(Some(thread)) })
    }

    /// Where the first listener is.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns when the thread has ended, whoever else has called it: HUB-9. Further calls do nothing.
    pub(crate) fn stop(&self) {
        // Held until the end, so that a second caller waits for it, too.
        let mut held = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = held.take() else { return };
        self.stopping.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            log::error!("can't stop {}: {error}", self.what);
            return;
        }
        if thread.join().is_err() {
            log::error!("{} ended in a panic", self.what);
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run<S: Service>(service: &mut S, stopping: &AtomicBool) -> io::Result<()> {
    let mut events = Events::with_capacity(1024);
    let doors = service.sockets().doors.len();
    let mut awake_until = Instant::now();
    while !stopping.load(Ordering::Acquire) {
        let sockets = service.sockets();
        let is_awake = Instant::now() < awake_until;
        let patience = if is_awake { Some(Duration::ZERO) } else { sockets.patience() };
        match sockets.poll.poll(&mut events, patience) {
            Err(error) if error.kind() == IoKind::Interrupted => continue,
            result => result?,
        }
        if !events.is_empty() {
            awake_until = Instant::now() + S::AWAKE;
        } else if is_awake && sockets.again.is_empty() {
            // Whoever else wants the processor has it, and so may a client on this one.
            rustix::thread::sched_yield();
            continue;
        }
        for event in &events {
            let number = event.token().0;
            match WAKER - number {
                0 => {}
                door if door <= doors => accept(service, door - 1),
                _ => turn(service, number / SOCKETS, Some(event)),
            }
        }
        let now = Instant::now();
        for door in 0..doors {
            if service.sockets().doors[door].backlog.is_due(now) {
                accept(service, door);
            }
        }
        while let Some(id) = service.sockets().unproved.expired(now) {
            let late = service.sockets().limits.late.clone();
            service.close(id, &late);
        }
        // HUB-6
        for id in std::mem::take(&mut service.sockets().again) {
            turn(service, id, None);
        }
    }
    Ok(())
}

fn accept<S: Service>(service: &mut S, number: usize) {
    while let door = &mut service.sockets().doors[number]
        && let Some((stream, peer)) = door.backlog.next(Instant::now(), || door.listener.accept())
    {
        let begun = service.sockets().reserve().and_then(|id| {
            let begun = service.begin(id, number, stream, peer);
            let begun = begun.inspect_err(|_| service.sockets().vacant.push(id));
            Ok((id, begun?))
        });
        let (id, connection) = match begun {
            Ok(begun) => begun,
            Err(why) => {
                service.sockets().refused(peer, &why);
                continue;
            }
        };
        match service.sockets().keep(id, connection, peer.ip()) {
            Ok(None) => {}
            Ok(Some(oldest)) => {
                let crowded = service.sockets().limits.crowded;
                service.close(oldest, &crowded);
            }
            Err(why) => service.close(id, &why),
        }
        turn(service, id, None);
    }
}

fn turn<S: Service>(service: &mut S, id: usize, event: Option<&Event>) {
    // HUB-7
    let Some(was_proved) = service.sockets().get_mut(id).map(|connection| connection.is_proved()) else {
        return;
    };
    let moved = service.turn(id, event);
    let sockets = service.sockets();
    if !was_proved && sockets.get_mut(id).is_some_and(|connection| connection.is_proved()) {
        sockets.unproved.retain(|waiting| *waiting != id);
    }
    match moved {
        Ok(true) => sockets.again(id),
        Ok(false) => {}
        Err(why) => service.close(id, &why),
    }
}

#[cfg(test)]
mod tests;
