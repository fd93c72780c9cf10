//! How a group comes together, its bootstrap: which ranks are there, which share memory, and connections between
//! neighbours on different hosts (GROUP-80) by which each sees the other's end.
//!
//! Each rank listens and publishes its address (its card). Once all have, it looks for its host's lowest rank, the
//! leader: it tries the ranks below it, the lowest first, until one shares memory with it. When all have told who leads
//! them, leaders read the tables of what all said, and hand them to the ranks that they lead. Then a rank connects to
//! its lower neighbours on other hosts, and takes from its leader what its host shares ([`host`]). Other
//! connections are opened later, by the same door ([`crate::door::connections`]).
//!
//! - GROUP-6 (proven-memory): two ranks are of one host only if each has read from memory what the other wrote there.
//!   Names of hosts and addresses are never compared.
//! - GROUP-7 (nothing-left): when it fails, and when all ranks are of one host, no socket listens and no thread is
//!   left. Else one socket and one thread are, the rank's door, and they end with the group. Inside the host nobody
//!   listens.
//! - GROUP-8 (sealed-cards): what ranks leave on the store counts only if one of the group left it there: the store is
//!   open to others.
//! - GROUP-9 (no-secret-told): the ranks of a job have the group's key from their node, and it is never sent.
//! - GROUP-10 (never-plain): in a group that encrypts, hosts are connected by TLS with the rank whose card said its
//!   key, and in no other way.
//! - GROUP-11 (retried-ends): only a rank that hangs up is asked again, until the deadline, whose error tells of it.
//!   What else goes wrong between two ranks ends the bootstrap at once, with its name.
//! - GROUP-12 (found-by-key): where a rank listens inside its host follows from the group's key and a number of rank
//!   0's: only ranks of the group know where, before somebody listens there.

pub(crate) mod exchange;
pub(crate) mod host;
pub(crate) mod store;
mod tables;
pub(crate) mod topology;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Duration;

use phalanx_io::{Identity, TlsServer, pause, raise_descriptor_limit, widen_backlog};
use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use crate::bootstrap::exchange::Exchange;
use crate::bootstrap::host::SharedHost;
use crate::bootstrap::store::Store;
use crate::bootstrap::tables::Tables;
use crate::bootstrap::topology::Topology;
use crate::door::Door;
use crate::door::acceptor::Acceptor;
use crate::door::connections::{Connections, LOCAL, SENTINEL};
use crate::door::dialer::{Dialer, Target};
use crate::door::handshake::{Hello, introduce, random};
use crate::door::link::PROTOCOL;
use crate::door::probe::{Probe, take_descriptor};
use crate::door::timed::Timed;
use crate::forks::{Opening, Private};
use crate::shm::Layout;

/// How long a rank whose peer hung up, as it does on the oldest of too many strangers, waits before it tries again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How often it tries inside a host; between hosts the door does until the deadline.
const LOCAL_TRIES: usize = 3;

/// What a rank tells about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Card {
    version: u32,
    address: SocketAddr,
    pid: u32,
    /// Process numbers mean the same only within one of these.
    pid_namespace: String,
    /// Its public key, in hexadecimal, if it encrypts what goes to other hosts.
    tls_key: Option<String>,
}

const VERSION: u32 = 6;

pub(crate) struct Bootstrap<'a> {
    pub(crate) name: &'a str,
    /// The key of the job's groups; `None` outside a job.
    pub(crate) key: Option<&'a Key>,
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) address: IpAddr,
    /// How many connections two ranks of different hosts have at most.
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
    pub(crate) host: Option<SharedHost>,
    /// The processes of the other ranks of the host, where they can be watched.
    pub(crate) processes: HashMap<usize, u32>,
    /// What opens connections to ranks of other hosts, with a sentinel to each neighbour. None where there are none.
    pub(crate) door: Option<Door>,
}

pub(crate) fn bootstrap(request: &Bootstrap<'_>, store: &mut dyn Store) -> Result<Mesh> {
    raise_descriptor_limit();
    let key = group_key(request, store)?;
    let Bootstrap { name, rank, world_size, deadline, .. } = *request;
    let mut exchange = Exchange { store, name, key: key.clone(), rank, world_size, deadline };
    let meeting = exchange.meeting()?;
    let tcp = listen(|| TcpListener::bind((request.address, 0)))
        .map_err(|error| Error::io(format_args!("listen at {}", request.address), &error))?;
    let unix = UnixAddr::from_abstract_name(socket(&key, &meeting, request.pretended_host, rank))
        .and_then(|address| listen(|| UnixListener::bind_addr(&address)))
        .map_err(|error| Error::io("listen at a unix socket", &error))?;
    let identity = request.encryption.then(Identity::new).transpose()?;
    let tls = identity.as_ref().map(|identity| TlsServer::new(identity, PROTOCOL)).transpose()?;
    let listening = tcp.set_nonblocking(true).and_then(|()| unix.set_nonblocking(true));
    let listening = listening.and_then(|()| widen_backlog(&*tcp)).and_then(|()| widen_backlog(&*unix));
    let address = listening.and_then(|()| tcp.local_addr()).map_err(|error| Error::io("listen", &error))?;
    let card = Card {
        version: VERSION,
        address,
        pid: std::process::id(),
        pid_namespace: pid_namespace(),
        tls_key: identity.map(|identity| hex::encode(identity.public_key())),
    };
    let acceptor = Acceptor::new(rank, world_size, key.clone(), request.connections, tls)?;
    let connections = Arc::new(Connections::new(rank)?);
    let handshakes = (acceptor, Dialer::new(rank, key));
    // GROUP-7, GROUP-20: whatever goes wrong from here on ends it.
    let door = Door::open(handshakes, connections, (tcp, unix))?;
    connect_all(request, &mut exchange, &meeting, door, &card)
}

fn connect_all(
    request: &Bootstrap<'_>,
    exchange: &mut Exchange<'_>,
    meeting: &str,
    door: Door,
    mine: &Card,
) -> Result<Mesh> {
    let Bootstrap { rank: me, world_size, deadline, .. } = *request;
    exchange.say_with_all("card", mine)?;
    let mut found = Caller { request, key: &exchange.key, meeting }.leader();
    exchange.say("leader", &found.as_ref().map_or(me, |(rank, _)| *rank))?;
    let tables = tables(exchange, found.as_mut())?;
    let cards: Vec<Card> = exchange.all("card", &tables.cards)?;
    check(&cards, me)?;
    door.know(cards.iter().map(Card::target).collect::<Result<_>>()?);
    let leaders: Vec<usize> = exchange.all("leader", &tables.leaders)?;
    let topology = Topology::from_leaders(&leaders);
    let host = topology.host_of(me).to_vec();
    if let Some((leader, _)) = &found
        && host[0] != *leader
    {
        log::warn!(
            "rank {me} is a host of its own: rank {leader}, with which it shares memory, is led by another"
        );
    }
    let neighbours = topology.neighbours(me);
    neighbours.range(..me).for_each(|rank| door.connections().ask((*rank, SENTINEL)));
    // Also those that are hosts of their own.
    let led: Vec<usize> = (me + 1..world_size).filter(|rank| leaders[*rank] == me).collect();
    let mut arrived = door.connections().wait_for_local(&led, deadline)?;
    for (rank, stream) in &mut arrived {
        // Who has ended is named when memory is handed round.
        if let Err(error) = tables.send(stream, deadline) {
            log::info!("rank {me}: rank {rank} did not receive the addresses of all ranks: {error}");
        }
    }
    arrived.retain(|(rank, _)| host.binary_search(rank).is_ok());
    door.connections().wait_for_sentinels(neighbours, deadline)?;
    let layout = (request.layout)(host.len());
    let shared = match found {
        _ if host.len() == 1 => None,
        Some((leader, stream)) if leader == host[0] => {
            let followed = host::follow(&host, me, stream, layout, deadline);
            Some(followed.map_err(|error| error.context(format_args!("memory from rank {leader}")))?)
        }
        _ => Some(host::lead(arrived, layout, deadline)?),
    };
    let processes = host.iter().filter(|rank| **rank != me).filter_map(|rank| {
        let card = &cards[*rank];
        let is_other = card.pid != mine.pid && card.pid_namespace == mine.pid_namespace;
        (is_other && !card.pid_namespace.is_empty()).then_some((*rank, card.pid))
    });
    let processes = processes.collect();
    let door = (host.len() < world_size).then_some(door);
    Ok(Mesh { topology, host: shared, processes, door })
}

/// What all said, by this rank's leader; from the store, if it has none, or if that has ended.
fn tables(exchange: &mut Exchange<'_>, leader: Option<&mut (usize, Private<UnixStream>)>) -> Result<Tables> {
    if let Some((rank, stream)) = leader {
        match Tables::receive(stream, exchange.deadline) {
            Err(error) if error.kind() == ErrorKind::Closed => {
                log::info!("rank {}: rank {rank}, which leads its host, has ended: {error}", exchange.rank);
            }
            tables => return tables.map_err(|error| error.context(format_args!("from rank {rank}"))),
        }
    }
    Ok(Tables { cards: exchange.table("card")?, leaders: exchange.table("leader")? })
}

/// The name of a rank's socket inside its host (GROUP-12), which another pretended host doesn't find.
fn socket(key: &Key, meeting: &str, pretended_host: Option<u32>, rank: usize) -> String {
    let host = pretended_host.map_or_else(String::new, |host| host.to_string());
    let name = key.of_group(&format!("socket {meeting} {host} {rank}"));
    format!("phalanx-{}", hex::encode(&name.bytes()[..16]))
}

impl Card {
    /// How the rank is reached from other hosts.
    fn target(&self) -> Result<Target> {
        let no_key = |_| Error::new(ErrorKind::Protocol, "a rank sent an invalid key");
        let tls_key = self.tls_key.as_ref().map(hex::decode).transpose().map_err(no_key)?;
        Ok(Target { address: self.address, tls_key })
    }
}

/// Whether all ranks can be of one group, as the rank `me` sees it.
fn check(cards: &[Card], me: usize) -> Result<()> {
    if let Some(rank) = cards.iter().position(|card| card.version != VERSION) {
        return Err(Error::new(ErrorKind::Protocol, format!("rank {rank} has another version of Phalanx")));
    }
    let encrypts = |rank: usize| cards[rank].tls_key.is_some();
    let Some(rank) = (0..cards.len()).find(|rank| encrypts(*rank) != encrypts(me)) else { return Ok(()) };
    let (one, other) = if encrypts(me) { (me, rank) } else { (rank, me) };
    let text = format!(
        "rank {one} encrypts what it sends to other hosts and rank {other} doesn't: set \
         spark.phalanx.encryption to the same value for all"
    );
    Err(Error::new(ErrorKind::Invalid, text))
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
    let no_secret = |_| Error::new(ErrorKind::Protocol, format!("{key} is not a valid secret"));
    value.try_into().map(Key::from_bytes).map_err(no_secret)
}

/// How a rank goes to others of its host.
struct Caller<'a> {
    request: &'a Bootstrap<'a>,
    key: &'a Key,
    meeting: &'a str,
}

impl Caller<'_> {
    /// The lowest of the lower ranks that shares memory with this one, and the connection to it.
    fn leader(&self) -> Option<(usize, Private<UnixStream>)> {
        (0..self.request.rank).find_map(|rank| Some((rank, self.reach(rank)?)))
    }

    /// A connection to a lower rank, which listens, if it shares memory with this one.
    fn reach(&self, rank: usize) -> Option<Private<UnixStream>> {
        let name = socket(self.key, self.meeting, self.request.pretended_host, rank);
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
        for _ in 0..LOCAL_TRIES {
            // Refused at once where it isn't there: in another network namespace, on another host.
            let mut stream = connect(&address).ok()?;
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
        let hello = Hello { from: me as u32, to: rank as u32, connection: LOCAL };
        introduce(stream, hello, self.key, &[], deadline)?;
        let file = take_descriptor(stream, deadline)?;
        let (mine, theirs) = Probe::leave(&file, me)?;
        let mut answer = [0; 16];
        stream.send(&mine, deadline, "probe")?;
        stream.receive(&mut answer, deadline, "probe")?;
        if answer == theirs {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unreachable, "what one writes there, the other doesn't see"))
    }
}

/// A socket that listens, of `bind`.
fn listen<T: AsRawFd>(bind: impl FnOnce() -> io::Result<T>) -> io::Result<Private<T>> {
    let opening = Opening::begin();
    bind().map(|socket| opening.private(socket))
}

/// A connection to a rank of this host.
fn connect(address: &SocketAddrUnix) -> rustix::io::Result<Private<UnixStream>> {
    let socket = {
        let opening = Opening::begin();
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        opening.private(UnixStream::from(socket))
    };
    // GROUP-31: who is too busy to accept is waited for out here.
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// Empty where it can't be told: then processes aren't watched, only sockets.
fn pid_namespace() -> String {
    std::fs::read_link("/proc/self/ns/pid")
        .map(|link| link.to_string_lossy().into_owned())
        .unwrap_or_default()
}
