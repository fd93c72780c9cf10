//! How a group comes together, its bootstrap: which ranks are there, which share memory, and a connection between any
//! two.
//!
//! Each rank listens, publishes its address (its card), and connects to the ranks below it. First it connects inside
//! what may be its host, to find out by trying which ranks share memory with it. When that is known, it connects
//! between hosts.
//!
//! - BOOT-1 (proven-memory): two ranks are of one host only if each has read from memory what the other wrote there.
//!   Names of hosts and addresses are never compared.
//! - BOOT-2 (nothing-left): when it returns, with whatever result, no socket listens and no thread is left.
//! - BOOT-3 (sealed-cards): what ranks leave on the store counts only if one of the group left it there: the store is
//!   open to others.
//! - BOOT-4 (no-secret-told): the ranks of a job have the group's key from their node, and it is never sent.
//! - BOOT-5 (never-plain): in a group that encrypts, hosts are connected by TLS with the rank whose card said its key,
//!   and in no other way.
//! - BOOT-6 (retried-ends): only a rank that hangs up is asked again, until the deadline, whose error tells of it. What
//!   else goes wrong between two ranks ends the bootstrap at once, with its name.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::time::Duration;

use phalanx_io::{Identity, TlsServer, pause, raise_descriptor_limit, widen_backlog};
use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use serde::{Deserialize, Serialize};

use crate::acceptor::{Acceptor, LOCAL_CONNECTION};
use crate::handshake::{Hello, introduce, random};
use crate::link::{Link, PROTOCOL};
use crate::probe::{Probe, give_descriptor, take_descriptor};
use crate::shm::{Layout, Segment};
use crate::store::Store;
use crate::tcp;
use crate::timed::Timed;
use crate::topology::Topology;

/// How long a rank whose peer hung up, as it does on the oldest of too many strangers, waits before it tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How often it tries inside a host; between hosts it does until the deadline.
const LOCAL_TRIES: usize = 3;
/// The connection that carries no data: see [`crate::peers`].
pub(crate) const SENTINEL: u32 = 0;

/// What a rank tells about itself.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    version: u32,
    address: SocketAddr,
    /// Its socket in the abstract namespace.
    socket: String,
    pid: u32,
    /// Process numbers mean the same only within one of these.
    pid_namespace: String,
    pretended_host: Option<u32>,
    /// Its public key, in hexadecimal, if it encrypts what goes to other hosts.
    tls_key: Option<String>,
}

const VERSION: u32 = 3;

pub(crate) struct Bootstrap<'a> {
    pub(crate) name: &'a str,
    /// The key of the job's groups; `None` outside a job.
    pub(crate) key: Option<&'a Key>,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) address: IpAddr,
    /// Connections to each rank of another host, besides the first.
    pub(crate) connections: u32,
    pub(crate) pretended_host: Option<u32>,
    pub(crate) encryption: bool,
    pub(crate) layout: fn(ranks: usize) -> Layout,
    pub(crate) deadline: Deadline,
}

/// A group that has come together.
pub(crate) struct Mesh {
    pub(crate) topology: Topology,
    /// None where this rank is alone on its host.
    pub(crate) segment: Option<Segment>,
    /// To each other rank of the host, with its process where that can be watched.
    pub(crate) local: HashMap<usize, (UnixStream, Option<u32>)>,
    /// To each rank of other hosts, by number of the connection.
    pub(crate) remote: HashMap<(usize, u32), Link>,
}

pub(crate) fn bootstrap(request: &Bootstrap<'_>, store: &mut dyn Store) -> Result<Mesh> {
    raise_descriptor_limit();
    let key = group_key(request, store)?;
    let tcp = TcpListener::bind((request.address, 0))
        .map_err(|error| Error::io(format_args!("listen at {}", request.address), &error))?;
    let socket = format!("phalanx-{}", hex::encode(random::<16>()?));
    let unix = UnixAddr::from_abstract_name(&socket)
        .and_then(|address| UnixListener::bind_addr(&address))
        .map_err(|error| Error::io("listen at a unix socket", &error))?;
    let identity = request.encryption.then(Identity::new).transpose()?;
    let tls = identity.as_ref().map(|identity| TlsServer::new(identity, PROTOCOL)).transpose()?;
    let listening = tcp.set_nonblocking(true).and_then(|()| unix.set_nonblocking(true));
    let listening = listening.and_then(|()| widen_backlog(&tcp)).and_then(|()| widen_backlog(&unix));
    let address = listening.and_then(|()| tcp.local_addr()).map_err(|error| Error::io("listen", &error))?;
    let card = Card {
        version: VERSION,
        address,
        socket,
        pid: std::process::id(),
        pid_namespace: pid_namespace(),
        pretended_host: request.pretended_host,
        tls_key: identity.map(|identity| hex::encode(identity.public_key())),
    };
    let mut board = Board { store, request, key: key.clone() };
    board.publish("card", &card)?;
    let acceptor = Acceptor::new(request.rank, request.world_size, key, tls)?;
    std::thread::scope(|scope| {
        // BOOT-2: the scope waits for the thread, which ends when the acceptor closes.
        let _close = CloseOnDrop(&acceptor);
        std::thread::Builder::new()
            .name("phalanx-join".into())
            .spawn_scoped(scope, || acceptor.serve(&tcp, &unix))
            .map_err(|error| Error::io("start a thread", &error))?;
        connect_all(request, &mut board, &acceptor, &card)
    })
}

fn connect_all(
    request: &Bootstrap<'_>,
    board: &mut Board<'_>,
    acceptor: &Acceptor,
    mine: &Card,
) -> Result<Mesh> {
    let Bootstrap { rank: me, world_size, deadline, .. } = *request;
    let cards: Vec<Card> = (0..world_size).map(|rank| board.read("card", rank)).collect::<Result<_>>()?;
    if let Some(rank) = cards.iter().position(|card| card.version != VERSION) {
        return Err(Error::new(ErrorKind::Protocol, format!("rank {rank} has another version of phalanx")));
    }
    if let Some(rank) = cards.iter().position(|card| card.tls_key.is_some() != mine.tls_key.is_some()) {
        let (one, other) = if mine.tls_key.is_some() { (me, rank) } else { (rank, me) };
        let text = format!(
            "rank {one} encrypts what it sends to other hosts and rank {other} doesn't: it is to be the same on all"
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    let mut local = HashMap::new();
    for (rank, card) in cards.iter().enumerate().take(me) {
        if card.pretended_host == mine.pretended_host
            && let Some(stream) = board.reach(rank, card)
        {
            local.insert(rank, stream);
        }
    }
    let mut reach: Vec<usize> = local.keys().copied().collect();
    reach.sort_unstable();
    board.publish("reach", &reach)?;
    let reached: Vec<Vec<usize>> =
        (0..world_size).map(|rank| board.read("reach", rank)).collect::<Result<_>>()?;
    let topology = Topology::from_reach(&reached);
    let host = topology.host_of(me).to_vec();
    let elsewhere: Vec<usize> = (0..world_size).filter(|rank| !host.contains(rank)).collect();
    let mut remote = HashMap::new();
    for &rank in elsewhere.iter().filter(|rank| **rank < me) {
        for connection in 0..=request.connections {
            let hello = Hello { from: me as u32, to: rank as u32, connection };
            let link = board
                .connect(&cards[rank], hello)
                .map_err(|error| error.context(format_args!("rank {rank} at {}", cards[rank].address)))?;
            remote.insert((rank, connection), link);
        }
    }
    let higher = |ranks: &[usize]| ranks.iter().copied().filter(|rank| *rank > me).collect::<Vec<_>>();
    let arrived = acceptor.wait_for(&higher(&host), &higher(&elsewhere), request.connections, deadline)?;
    local.extend(arrived.local);
    local.retain(|rank, _| host.contains(rank));
    remote.extend(arrived.remote);
    for link in remote.values() {
        tcp::prepare(link.socket())?;
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
    Ok(Mesh { topology, segment, local: local.collect(), remote })
}

/// The lowest rank of a host makes its memory and hands it to the others.
fn share(
    request: &Bootstrap<'_>,
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
    stream.limit(deadline)?;
    let fd =
        take_descriptor(stream).map_err(|error| error.context(format_args!("memory from rank {lowest}")))?;
    Segment::open(&fd, layout)
}

/// The key of this group. Outside a job rank 0 hands one out by the store, which is then what has to be trusted.
fn group_key(request: &Bootstrap<'_>, store: &mut dyn Store) -> Result<Key> {
    if let Some(key) = request.key {
        return Ok(key.of_group(request.name));
    }
    let key = format!("{}/secret", request.name);
    if request.rank == 0 {
        store.set(&key, &random::<32>()?, request.deadline)?;
    }
    let value = store.get(&key, request.deadline)?;
    let no_secret = |_| Error::new(ErrorKind::Protocol, format!("{key} is no secret"));
    value.try_into().map(Key::from_bytes).map_err(no_secret)
}

/// Where ranks tell one another how to be reached, and how they go there.
struct Board<'a> {
    store: &'a mut dyn Store,
    request: &'a Bootstrap<'a>,
    key: Key,
}

impl Board<'_> {
    fn publish(&mut self, what: &str, value: &impl Serialize) -> Result<()> {
        let place = format!("{}/{what}/{}", self.request.name, self.request.rank);
        let json = serde_json::to_vec(value)
            .map_err(|error| Error::new(ErrorKind::Protocol, format!("can't write a {what}: {error}")))?;
        self.store.set(&place, &self.key.seal(&place, &json), self.request.deadline)
    }

    fn read<T: for<'de> Deserialize<'de>>(&mut self, what: &str, rank: usize) -> Result<T> {
        let Bootstrap { name, deadline, .. } = *self.request;
        let place = format!("{name}/{what}/{rank}");
        let sealed = self
            .store
            .get(&place, deadline)
            .map_err(|error| error.context(format_args!("rank {rank} has not joined {name:?}")))?;
        // BOOT-3
        let json = self.key.open(&place, &sealed).ok_or_else(|| {
            let text = format!("what the store has at {place} is from no rank of this group");
            Error::new(ErrorKind::Refused, text)
        })?;
        serde_json::from_slice(json)
            .map_err(|error| Error::new(ErrorKind::Protocol, format!("{place} can't be read: {error}")))
    }

    /// A connection to a rank of another host.
    fn connect(&self, card: &Card, hello: Hello) -> Result<Link> {
        let deadline = self.request.deadline;
        let no_key = |_| Error::new(ErrorKind::Protocol, "what it told is no key");
        let tls_key = card.tls_key.as_ref().map(hex::decode).transpose().map_err(no_key)?;
        let once = || {
            let socket = phalanx_io::connect(card.address, deadline)?;
            let mut link = match &tls_key {
                Some(key) => Link::connect(socket, key, deadline)?,
                None => Link::plain(socket),
            };
            let binding = link.binding()?;
            introduce(&mut link, hello, &self.key, &binding, deadline).map(|()| link)
        };
        let mut before: Option<Error> = None;
        loop {
            match (once(), &before) {
                (Ok(link), _) => return Ok(link),
                (Err(error), _) if error.kind() == ErrorKind::Closed && !deadline.passed() => {
                    before = Some(error);
                    pause(RETRY_PAUSE, deadline);
                }
                (Err(error), Some(before)) if error.kind() == ErrorKind::Timeout => {
                    return Err(Error::new(error.kind(), format!("{error}; before that: {before}")));
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// A connection to a lower rank, if it shares memory with this one.
    fn reach(&self, rank: usize, card: &Card) -> Option<UnixStream> {
        let address = UnixAddr::from_abstract_name(&card.socket).ok()?;
        for _ in 0..LOCAL_TRIES {
            // Refused at once where it isn't in the same network namespace.
            let mut stream = UnixStream::connect_addr(&address).ok()?;
            match self.prove_shared(&mut stream, rank) {
                Ok(()) => return Some(stream),
                Err(error) => {
                    log::info!("rank {}: no shared memory with rank {rank}: {error}", self.request.rank);
                    if error.kind() != ErrorKind::Closed {
                        return None;
                    }
                    pause(RETRY_PAUSE, self.request.deadline);
                }
            }
        }
        None
    }

    fn prove_shared(&self, stream: &mut UnixStream, rank: usize) -> Result<()> {
        let Bootstrap { rank: me, deadline, .. } = *self.request;
        let hello = Hello { from: me as u32, to: rank as u32, connection: LOCAL_CONNECTION };
        introduce(stream, hello, &self.key, &[], deadline)?;
        let fd = take_descriptor(stream)?;
        let (mine, theirs) = Probe::leave(&fd, me)?;
        let mut answer = [0; 16];
        stream.send(&mine, deadline, "probe")?;
        stream.receive(&mut answer, deadline, "probe")?;
        if answer == theirs {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unreachable, "what one writes there, the other doesn't see"))
    }
}

/// Closes the acceptor on every way out.
struct CloseOnDrop<'a>(&'a Acceptor);

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Empty where it can't be told: then processes aren't watched, only sockets.
fn pid_namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default()
}
