//! How a group comes together: who is there, who shares memory with whom, and a connection between any two.
//!
//! Each rank listens, tells where (its card), and connects to the ranks below it: first inside what may be its host,
//! to find out by trying who shares memory with it; then, when that is known, between hosts.
//!
//! - JOI-1: two ranks are of one host only if one has read from memory what the other wrote there, both ways.
//!   Names of hosts and addresses are never compared.
//! - JOI-2: when it returns, with whatever result, no socket listens and no thread is left.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use crate::exchange::Exchange;
use crate::handshake::{Hello, Secret, introduce, random, welcome};
use crate::probe::{Probe, give_descriptor, take_descriptor};
use crate::shm::{Layout, Segment};
use crate::tcp;
use crate::topology::Topology;

/// How long a stranger may take to introduce itself.
const STRANGER_PATIENCE: Duration = Duration::from_secs(2);
/// How often the thread that accepts looks whether it is still needed.
const ACCEPT_PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
/// The connection that carries no data: see [`crate::peers`].
pub(crate) const SENTINEL_STREAM: u32 = 0;
/// A number that no connection between hosts has.
const LOCAL_STREAM: u32 = u32::MAX;

/// What a rank tells about itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Card {
    version: u32,
    address: SocketAddr,
    /// Its socket in the abstract namespace.
    socket: String,
    pid: u32,
    /// Process numbers mean the same only within one of these.
    pid_namespace: String,
    pretended_host: Option<u32>,
}

const VERSION: u32 = 1;

pub(crate) struct Request<'a> {
    pub(crate) name: &'a str,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) address: IpAddr,
    /// Connections to each rank of another host, besides the first.
    pub(crate) streams: u32,
    pub(crate) pretended_host: Option<u32>,
    pub(crate) layout: fn(ranks: usize) -> Layout,
    pub(crate) deadline: Deadline,
}

/// A group that has come together.
pub(crate) struct Joined {
    pub(crate) topology: Topology,
    /// None where this rank is alone on its host.
    pub(crate) segment: Option<Segment>,
    /// To each other rank of the host, with its process where that can be watched.
    pub(crate) local: HashMap<usize, (UnixStream, Option<u32>)>,
    /// To each rank of other hosts, by number of the connection.
    pub(crate) remote: HashMap<(usize, u32), TcpStream>,
}

/// What arrived at this rank's sockets.
#[derive(Default)]
struct Arrived {
    local: HashMap<usize, UnixStream>,
    remote: HashMap<(usize, u32), TcpStream>,
}

struct Desk {
    me: usize,
    secret: Secret,
    probe: Probe,
    arrived: Mutex<Arrived>,
    changed: Condvar,
    is_closed: AtomicBool,
}

pub(crate) fn join(request: &Request<'_>, exchange: &mut dyn Exchange) -> Result<Joined> {
    let secret = shared_secret(request, exchange)?;
    let tcp = TcpListener::bind((request.address, 0))
        .map_err(|error| Error::io(format_args!("listen at {}", request.address), &error))?;
    let socket = format!("phalanx-{}", hex(&random::<16>()?));
    let unix = UnixAddr::from_abstract_name(&socket)
        .and_then(|address| UnixListener::bind_addr(&address))
        .map_err(|error| Error::io("listen at a unix socket", &error))?;
    let listening = tcp.set_nonblocking(true).and_then(|()| unix.set_nonblocking(true));
    let address = listening.and_then(|()| tcp.local_addr()).map_err(|error| Error::io("listen", &error))?;
    let card = Card {
        version: VERSION,
        address,
        socket,
        pid: std::process::id(),
        pid_namespace: pid_namespace(),
        pretended_host: request.pretended_host,
    };
    publish(exchange, request, "card", &card)?;
    let desk = Desk {
        me: request.rank,
        secret,
        probe: Probe::new(request.world_size)?,
        arrived: Mutex::default(),
        changed: Condvar::new(),
        is_closed: AtomicBool::new(false),
    };
    std::thread::scope(|scope| {
        // JOI-2: the scope waits for the thread, which ends when the desk closes.
        let _closes = Closes(&desk);
        std::thread::Builder::new()
            .name("phalanx-join".into())
            .spawn_scoped(scope, || desk.serve(&tcp, &unix))
            .map_err(|error| Error::io("start a thread", &error))?;
        connect_all(request, exchange, &desk, &card)
    })
}

fn connect_all(
    request: &Request<'_>,
    exchange: &mut dyn Exchange,
    desk: &Desk,
    mine: &Card,
) -> Result<Joined> {
    let Request { rank: me, world_size, deadline, .. } = *request;
    let cards: Vec<Card> =
        (0..world_size).map(|rank| read(exchange, request, "card", rank)).collect::<Result<_>>()?;
    if let Some(rank) = cards.iter().position(|card| card.version != VERSION) {
        return Err(Error::new(ErrorKind::Protocol, format!("rank {rank} has another version of phalanx")));
    }
    let mut local = HashMap::new();
    for (rank, card) in cards.iter().enumerate().take(me) {
        if card.pretended_host == mine.pretended_host
            && let Some(stream) = desk.reach(rank, card, deadline)
        {
            local.insert(rank, stream);
        }
    }
    let mut reach: Vec<usize> = local.keys().copied().collect();
    reach.sort_unstable();
    publish(exchange, request, "reach", &reach)?;
    let reached: Vec<Vec<usize>> =
        (0..world_size).map(|rank| read(exchange, request, "reach", rank)).collect::<Result<_>>()?;
    let topology = Topology::from_reach(&reached);
    let host = topology.host_of(me).to_vec();
    let elsewhere: Vec<usize> = (0..world_size).filter(|rank| !host.contains(rank)).collect();
    let mut remote = HashMap::new();
    for &rank in elsewhere.iter().filter(|rank| **rank < me) {
        for stream in 0..=request.streams {
            let hello = Hello { from: me as u32, to: rank as u32, stream };
            let socket = tcp::connect(cards[rank].address, deadline)
                .and_then(|mut socket| introduce(&mut socket, hello, &desk.secret).map(|()| socket))
                .map_err(|error| error.context(format_args!("rank {rank}")))?;
            remote.insert((rank, stream), socket);
        }
    }
    let higher = |ranks: &[usize]| ranks.iter().copied().filter(|rank| *rank > me).collect::<Vec<_>>();
    let arrived = desk.wait_for(&higher(&host), &higher(&elsewhere), request.streams, deadline)?;
    local.extend(arrived.local);
    local.retain(|rank, _| host.contains(rank));
    remote.extend(arrived.remote);
    for ((_, stream), socket) in &remote {
        tcp::prepare(socket, *stream == SENTINEL_STREAM)?;
    }
    let segment = match &host[..] {
        [_] => None,
        _ => Some(share(request, &host, &mut local, deadline)?),
    };
    let local = local.into_iter().map(|(rank, stream)| {
        let card = &cards[rank];
        let is_other = card.pid != mine.pid && card.pid_namespace == mine.pid_namespace;
        (rank, (stream, (is_other && !card.pid_namespace.is_empty()).then_some(card.pid)))
    });
    Ok(Joined { topology, segment, local: local.collect(), remote })
}

/// The lowest rank of a host makes its memory and hands it to the others.
fn share(
    request: &Request<'_>,
    host: &[usize],
    local: &mut HashMap<usize, UnixStream>,
    deadline: Deadline,
) -> Result<Segment> {
    let layout = (request.layout)(host.len());
    let lowest = host[0];
    if request.rank == lowest {
        let (segment, fd) = Segment::create(layout)?;
        for stream in local.values_mut() {
            give_descriptor(stream, &fd)?;
        }
        return Ok(segment);
    }
    let stream = local
        .get_mut(&lowest)
        .ok_or_else(|| Error::new(ErrorKind::Protocol, format!("rank {lowest} is not connected")))?;
    limit(stream, deadline)?;
    let fd =
        take_descriptor(stream).map_err(|error| error.context(format_args!("memory from rank {lowest}")))?;
    Segment::open(&fd, layout)
}

fn shared_secret(request: &Request<'_>, exchange: &mut dyn Exchange) -> Result<Secret> {
    let key = format!("{}/secret", request.name);
    if request.rank == 0 {
        exchange.set(&key, &random::<32>()?, request.deadline)?;
    }
    let value = exchange.get(&key, request.deadline)?;
    value.try_into().map_err(|_| Error::new(ErrorKind::Protocol, format!("{key} is no secret")))
}

fn publish(
    exchange: &mut dyn Exchange,
    request: &Request<'_>,
    what: &str,
    value: &impl Serialize,
) -> Result<()> {
    let json = serde_json::to_vec(value)
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("can't write a {what}: {error}")))?;
    exchange.set(&format!("{}/{what}/{}", request.name, request.rank), &json, request.deadline)
}

fn read<T: for<'a> Deserialize<'a>>(
    exchange: &mut dyn Exchange,
    request: &Request<'_>,
    what: &str,
    rank: usize,
) -> Result<T> {
    let key = format!("{}/{what}/{rank}", request.name);
    let json = exchange
        .get(&key, request.deadline)
        .map_err(|error| error.context(format_args!("rank {rank} has not joined {:?}", request.name)))?;
    serde_json::from_slice(&json)
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("{key} can't be read: {error}")))
}

impl Desk {
    /// Accepts until it is closed. Strangers, and ranks that can't share memory, are let go.
    fn serve(&self, tcp: &TcpListener, unix: &UnixListener) {
        let mut fds = [tcp.as_fd(), unix.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        while !self.is_closed.load(Ordering::Relaxed) {
            let _ = poll(&mut fds, Some(&ACCEPT_PAUSE));
            while let Ok((stream, _)) = unix.accept() {
                if let Err(error) = self.accept_local(stream) {
                    log::debug!("rank {}: a connection inside the host came to nothing: {error}", self.me);
                }
            }
            while let Ok((stream, _)) = tcp.accept() {
                if let Err(error) = self.accept_remote(stream) {
                    log::debug!("rank {}: a connection came to nothing: {error}", self.me);
                }
            }
        }
    }

    fn accept_local(&self, mut stream: UnixStream) -> Result<()> {
        limit(&stream, Deadline::after(STRANGER_PATIENCE))?;
        let hello = welcome(&mut stream, &self.secret)?;
        if hello.to as usize != self.me || hello.stream != LOCAL_STREAM {
            return Err(Error::new(ErrorKind::Refused, "a connection for another rank"));
        }
        give_descriptor(&mut stream, self.probe.descriptor())?;
        // JOI-1: the peer says what it wrote; we look whether it is in the memory, and say what we wrote.
        let mut written = [0; 16];
        stream.read_exact(&mut written).map_err(|error| Error::io("probe", &error))?;
        let is_shared = self.probe.holds(hello.from as usize, &written)?;
        let answer = if is_shared { self.probe.nonce() } else { [0; 16] };
        stream.write_all(&answer).map_err(|error| Error::io("probe", &error))?;
        if is_shared {
            self.arrived().local.insert(hello.from as usize, stream);
            self.changed.notify_all();
        }
        Ok(())
    }

    fn accept_remote(&self, mut stream: TcpStream) -> Result<()> {
        let limited = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_read_timeout(Some(STRANGER_PATIENCE)))
            .and_then(|()| stream.set_write_timeout(Some(STRANGER_PATIENCE)));
        limited.map_err(|error| Error::io("accept", &error))?;
        let hello = welcome(&mut stream, &self.secret)?;
        if hello.to as usize != self.me || hello.stream == LOCAL_STREAM {
            return Err(Error::new(ErrorKind::Refused, "a connection for another rank"));
        }
        self.arrived().remote.insert((hello.from as usize, hello.stream), stream);
        self.changed.notify_all();
        Ok(())
    }

    /// Connects to a lower rank, if it shares memory with this one.
    fn reach(&self, rank: usize, card: &Card, deadline: Deadline) -> Option<UnixStream> {
        let address = UnixAddr::from_abstract_name(&card.socket).ok()?;
        // Refused at once where it isn't in the same network namespace.
        let mut stream = UnixStream::connect_addr(&address).ok()?;
        let outcome = self.prove_shared(&mut stream, rank, deadline);
        if let Err(error) = &outcome {
            log::info!("rank {}: no shared memory with rank {rank}: {error}", self.me);
        }
        outcome.ok().map(|()| stream)
    }

    fn prove_shared(&self, stream: &mut UnixStream, rank: usize, deadline: Deadline) -> Result<()> {
        limit(stream, deadline)?;
        introduce(
            stream,
            Hello { from: self.me as u32, to: rank as u32, stream: LOCAL_STREAM },
            &self.secret,
        )?;
        let fd = take_descriptor(stream)?;
        let (mine, theirs) = Probe::leave(&fd, self.me)?;
        let mut answer = [0; 16];
        let asked = stream.write_all(&mine).and_then(|()| stream.read_exact(&mut answer));
        asked.map_err(|error| Error::io("probe", &error))?;
        if answer == theirs {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unreachable, "what one writes there, the other doesn't see"))
    }

    fn arrived(&self) -> std::sync::MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(
        &self,
        local: &[usize],
        remote: &[usize],
        streams: u32,
        deadline: Deadline,
    ) -> Result<Arrived> {
        let mut arrived = self.arrived();
        loop {
            let missing = local.iter().find(|rank| !arrived.local.contains_key(rank)).or_else(|| {
                remote
                    .iter()
                    .find(|rank| (0..=streams).any(|one| !arrived.remote.contains_key(&(**rank, one))))
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
}

/// Closes the desk on every way out.
struct Closes<'a>(&'a Desk);

impl Drop for Closes<'_> {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
    }
}

/// A blocking socket whose reads and writes end by the deadline.
fn limit(stream: &UnixStream, deadline: Deadline) -> Result<()> {
    let left = deadline.left().map(|left| left.max(Duration::from_millis(1)));
    stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(left))
        .and_then(|()| stream.set_write_timeout(left))
        .map_err(|error| Error::io("limit a socket's time", &error))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Empty where it can't be told: then processes aren't watched, only sockets.
fn pid_namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default()
}
