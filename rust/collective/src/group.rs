//! A group of ranks: how it is joined, used by one thread at a time, aborted, and left.
//!
//! - GROUP-37 (deadline): every operation ends by its deadline.
//! - GROUP-38 (stays-broken): after an operation failed the group is broken. Every later call says so at once, on every
//!   rank. A message to or from a rank that has left is no failure (GROUP-66).
//! - GROUP-39 (checked-first): an argument that can't work is an error before anything is sent. The group stays usable.
//! - GROUP-40 (names-both): ranks that call different things all get an error that names both calls.
//! - GROUP-41 (delivers): a rank leaves once all that it sent is handed over, the receivers are gone, or for the
//!   group's time-out nothing more was taken. What is not delivered is said, with its receiver.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use rustix::event::Timespec;

use crate::activity::{ActivityLog, ActivityReader};
use crate::bell::{Bell, PeerBell};
use crate::bootstrap::host::SharedHost;
use crate::bootstrap::store::Store;
use crate::bootstrap::topology::Topology;
use crate::bootstrap::{Bootstrap, bootstrap};
use crate::call::{Call, Operation};
use crate::door::Door;
use crate::door::connections::DATA;
use crate::failure::Failure;
use crate::inter_host::transport::Transport;
use crate::intra_host::{self, LocalGroup};
use crate::p2p::messenger::Messenger;
use crate::p2p::pipe::Pipe;
use crate::p2p::unsent::undelivered;
use crate::peers::{LocalPeer, Peers};
use crate::shm::{Ring, Steps};
use crate::wait::{NAP, SpinPolicy, Watch};

/// More sockets than this to one peer only cost.
const MOST_CONNECTIONS: u32 = 16;

/// How to join a group. Equal on all ranks, but for `rank`, `address`, `pretended_host`, `cut_timeout` and
/// `activity`.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// The number of this rank.
    pub rank: usize,
    /// How many ranks the group has.
    pub world_size: usize,
    /// Tells this group from others on the same store; used once.
    pub name: String,
    /// What only the ranks know, and from which each group has a key of its own: see [`crate::job_key()`]. `None`
    /// outside a job: then rank 0 hands a secret out by the store, and whoever can read that can join.
    pub key: Option<Key>,
    /// Where this rank can be reached by ranks of other hosts.
    pub address: IpAddr,
    /// How long joining, and each operation, may take.
    pub timeout: Duration,
    /// Connections to a rank of another host over which data goes in parallel, at most: a short message takes one.
    pub connections: u32,
    /// Ranks with different numbers share no memory even where they could: to rehearse several hosts on one.
    pub pretended_host: Option<u32>,
    /// Whether all connections to other hosts are encrypted, by TLS 1.3. Each rank then has a key of its own, which the
    /// others are told under the group's key.
    pub encryption: bool,
    /// Whether sums and averages of float32 cross between hosts as bfloat16: half the bytes, 8 bits of precision.
    pub wire_bfloat16: bool,
    /// How long a rank of another host may acknowledge nothing before it is given up as cut off: whole seconds, two at
    /// the least, are kept to. None for as long as the kernel has patience, about a quarter of an hour
    /// (`net.ipv4.tcp_retries2`).
    pub cut_timeout: Option<Duration>,
    /// A file to make, from which other processes can read what this rank is doing: see [`crate::read_activity`].
    pub activity: Option<PathBuf>,
}

impl GroupOptions {
    /// Options with defaults: this machine's loopback address, 30 minutes (as torch's gloo), 2 connections.
    pub fn new(rank: usize, world_size: usize, name: impl Into<String>) -> GroupOptions {
        GroupOptions {
            rank,
            world_size,
            name: name.into(),
            key: None,
            address: Ipv4Addr::LOCALHOST.into(),
            timeout: Duration::from_secs(30 * 60),
            connections: 2,
            pretended_host: None,
            encryption: false,
            wire_bfloat16: false,
            cut_timeout: None,
            activity: None,
        }
    }

    fn check(&self) -> Result<()> {
        let problem = if self.rank >= self.world_size {
            format!("there is no rank {} in a group of {}", self.rank, self.world_size)
        } else if u32::try_from(self.world_size).is_err() {
            format!("{} ranks are too many", self.world_size)
        } else if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            format!("{} connections: it has to be 1 to {MOST_CONNECTIONS}", self.connections)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::Invalid, problem))
    }
}

/// One rank's membership. All ranks call the same operations in the same order.
pub struct Group {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    pub(crate) topology: Topology,
    /// Whose parts the ranks of this host carry: [`Topology::carried`].
    pub(crate) carried: Vec<Vec<usize>>,
    /// None where this rank is alone on its host.
    pub(crate) local: Option<LocalGroup>,
    /// To the ranks of other hosts.
    pub(crate) transport: Transport,
    pub(crate) wire_bfloat16: bool,
    /// Kept, as new memory costs more than what is done with it.
    pub(crate) scratch: Vec<u8>,
    /// Whoever waits also moves messages.
    pub(crate) messenger: Messenger,
    peers: Arc<Peers>,
    spin_policy: SpinPolicy,
    timeout: Duration,
    sequence: u64,
    broken: Option<Error>,
    /// Whether it was waited for what it sent.
    is_leaving: bool,
    activity: ActivityLog,
    interrupt_check: Option<Arc<InterruptCheck>>,
    /// None where all ranks are of one host.
    door: Option<Door>,
}

/// What is asked while an operation waits; an error ends it.
type InterruptCheck = dyn Fn() -> Result<()> + Send + Sync;

/// Ends a group from another thread. Cheap to clone; outlives the group.
#[derive(Clone)]
pub struct Aborter(Arc<Peers>);

impl Aborter {
    /// Breaks the group on all ranks, now: what is running fails within milliseconds, what comes later at once.
    pub fn abort(&self, why: &str) {
        let text = format!("rank {} aborted: {why}", self.0.me());
        self.0.fail(Failure::new(ErrorKind::Cancelled, text));
    }
}

impl Group {
    /// Joins: returns once all ranks have, and each would hear of the end of each other. Further connections to ranks
    /// of other hosts are opened as operations need them.
    ///
    /// # Errors
    /// `ErrorKind::Timeout` if a rank doesn't join in time, with its number; what `store` fails with; errors of
    /// the operating system.
    pub fn join(options: GroupOptions, store: &mut dyn Store) -> Result<Group> {
        options.check()?;
        let GroupOptions { rank, world_size, timeout, .. } = options;
        let activity = ActivityLog::new(options.activity.as_deref(), rank, world_size)?;
        let request = Bootstrap {
            name: &options.name,
            key: options.key.as_ref(),
            rank,
            world_size,
            address: options.address,
            connections: DATA + options.connections,
            pretended_host: options.pretended_host,
            encryption: options.encryption,
            layout: intra_host::layout,
            deadline: Deadline::after(timeout),
        };
        let mesh = bootstrap(&request, store).map_err(|error| error.context(format_args!("rank {rank}")))?;
        let ranks = mesh.topology.host_of(rank).to_vec();
        let (host, local_rank) = mesh.topology.locate(rank);
        let (segment, lifeline, mut lifelines) = match mesh.host {
            Some(SharedHost { segment, lifeline, others }) => {
                (Some(Arc::new(segment)), Some(lifeline), others)
            }
            None => (None, None, HashMap::new()),
        };
        let bells = ranks.iter().enumerate().filter_map(|(local_rank, rank)| {
            let bell = PeerBell::new(segment.clone()?, local_rank, lifelines.remove(rank)?);
            Some((*rank, bell))
        });
        let bells: HashMap<usize, PeerBell> = bells.collect();
        let connections = mesh.door.as_ref().map(|door| Arc::clone(door.connections()));
        let pipes = (0..world_size).map(|peer| match (&segment, ranks.binary_search(&peer)) {
            (Some(segment), Ok(theirs)) => {
                let ring = |from, to| Ring::new(Arc::clone(segment), from, to);
                let (outgoing, incoming) = (ring(local_rank, theirs), ring(theirs, local_rank));
                Some(Pipe::Memory { outgoing, incoming, bell: bells.get(&peer)?.clone() })
            }
            (None, Ok(_)) => None,
            (_, Err(_)) => Some(Pipe::Unopened),
        });
        let pipes = pipes.collect();
        let elsewhere = (0..world_size).filter(|rank| ranks.binary_search(rank).is_err());
        let transport = Transport::new(connections.clone(), elsewhere, options.connections);
        let spin_policy = SpinPolicy::of(ranks.len());
        let company = segment.clone().zip(lifeline);
        let bell = Bell::new(company.map(|(segment, lifeline)| (segment, local_rank, lifeline)))?;
        let process = |rank: &usize| mesh.processes.get(rank).copied();
        let local = bells.into_iter().map(|(rank, bell)| LocalPeer::new(rank, bell, process(&rank)));
        let local: Vec<LocalPeer> = local.collect();
        let cut_timeout = options.cut_timeout;
        let peers = Arc::new(Peers::new(rank, local_rank, segment.clone(), (local, bell), cut_timeout));
        if let Some(door) = &mesh.door {
            door.watch(Arc::clone(&peers));
        }
        let local_group = segment.map(|segment| LocalGroup::new(Steps::new(segment, local_rank), ranks));
        Ok(Group {
            rank,
            world_size,
            carried: mesh.topology.carried(host),
            topology: mesh.topology,
            local: local_group,
            transport,
            wire_bfloat16: options.wire_bfloat16,
            scratch: Vec::new(),
            messenger: Messenger::new(pipes, connections, Arc::clone(&peers)),
            peers,
            spin_policy,
            timeout,
            sequence: 0,
            broken: None,
            is_leaving: false,
            activity,
            interrupt_check: None,
            door: mesh.door,
        })
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// Which ranks share a host.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// How long an operation may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Changes how long an operation may take, from the next one on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Calls `check` whenever an operation that waits looks around, many times a second, on the thread that waits.
    /// Its error ends the operation, and the group: for programs that can be interrupted.
    pub fn set_interrupt_check(&mut self, check: impl Fn() -> Result<()> + Send + Sync + 'static) {
        self.interrupt_check = Some(Arc::new(check));
    }

    /// Leaves in good order. Waits until what this rank sent is handed over, for as long as somebody takes some of it
    /// within the group's time-out. A broken group is left at once. A group that is dropped is left the same way. Then
    /// a log has the error.
    ///
    /// # Errors
    /// Which ranks were not handed what (GROUP-41): [`ErrorKind::Timeout`] if one took nothing for so long, else
    /// [`ErrorKind::PeerLost`]; why the group failed meanwhile; what the interrupt check said. The group is left all
    /// the same.
    pub fn leave(mut self) -> Result<()> {
        self.deliver()
    }

    /// How many connections to ranks of other hosts it has open now.
    pub fn connections(&self) -> usize {
        self.door.as_ref().map_or(0, |door| door.connections().open())
    }

    /// For ending the group from another thread.
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::clone(&self.peers))
    }

    /// For seeing from another thread what the group is doing.
    pub fn activity(&self) -> ActivityReader {
        self.activity.reader()
    }

    /// Why the group is broken, if it is. Looks at the connections to the others, so that a rank that is busy with
    /// something else can find out; doesn't wait.
    pub fn failure(&self) -> Option<Error> {
        self.broken.clone().or_else(|| self.peers.poll(&[], &Timespec::default()).err())
    }

    /// Runs an operation: the one place where calls are counted, watched, and where they fail.
    pub(crate) fn run<T>(
        &mut self,
        call: Call,
        operation: impl FnOnce(&mut Group, &Watch<'_>) -> Result<T>,
    ) -> Result<T> {
        self.check_usable()?;
        self.watched(call, operation).map_err(|error| self.break_with(call, &error))
    }

    fn watched<T>(
        &mut self,
        call: Call,
        operation: impl FnOnce(&mut Group, &Watch<'_>) -> Result<T>,
    ) -> Result<T> {
        self.sequence += 1;
        self.activity.begin(self.sequence, call);
        let (messenger, check) = (self.messenger.clone(), self.interrupt_check.clone());
        let idle = || {
            check.as_ref().map_or(Ok(()), |check| check())?;
            messenger.progress_if_free()
        };
        let peers = Arc::clone(&self.peers);
        let Group { spin_policy, timeout, .. } = *self;
        let watch = Watch { call, peers: &peers, spin_policy, timeout, start: Instant::now(), idle: &idle };
        let result = peers.check().and_then(|()| operation(self, &watch));
        self.activity.end();
        result
    }

    /// GROUP-38
    pub(crate) fn check_usable(&self) -> Result<()> {
        match &self.broken {
            Some(error) => Err(error.clone().context("the group is broken")),
            None => Ok(()),
        }
    }

    /// The ranks of this host, if they are all.
    pub(crate) fn single_host(&mut self) -> Option<&mut LocalGroup> {
        self.local.as_mut().filter(|_| self.topology.hosts.len() == 1)
    }

    /// Hands over what was sent, as long as somebody takes it (GROUP-41).
    fn deliver(&mut self) -> Result<()> {
        self.is_leaving = true;
        if self.broken.is_some() || self.peers.check().is_err() {
            return Ok(());
        }
        let unsent = self.messenger.unsent_bytes();
        let call = Call::new(Operation::Leave).of_bytes(unsent);
        let delivered = if unsent > 0 {
            self.watched(call, |group, watch| group.hand_over_all(watch, unsent))
        } else {
            Ok(Duration::ZERO)
        };
        let delivered = delivered.and_then(|waited| {
            let [lost, late] = self.messenger.undelivered();
            undelivered(&lost, &late, waited).map_or(Ok(()), Err)
        });
        delivered.map_err(|error| self.messenger.in_call(call, error))
    }

    /// Returns when all is handed over, or for how long nothing was.
    fn hand_over_all(&mut self, watch: &Watch<'_>, mut unsent: usize) -> Result<Duration> {
        let mut moved = Instant::now();
        loop {
            let rings = self.messenger.rings();
            self.messenger.advance()?;
            let left = self.messenger.unsent_bytes();
            if left < unsent {
                moved = Instant::now();
            }
            unsent = left;
            if unsent == 0 || moved.elapsed() >= watch.timeout {
                return Ok(moved.elapsed());
            }
            (watch.idle)()?;
            self.messenger.sleep(rings, NAP)?;
        }
    }

    #[cold]
    fn break_with(&mut self, call: Call, error: &Error) -> Error {
        let Group { rank, sequence, .. } = *self;
        let story = self.peers.break_with(error);
        let error = story.context(format_args!("rank {rank}, in {call}, its operation {sequence}"));
        self.broken = Some(error.clone());
        error
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() && self.broken.is_none() {
            let text = format!("rank {} panicked", self.rank);
            self.peers.fail(Failure::new(ErrorKind::PeerLost, text));
        }
        if !self.is_leaving
            && let Err(error) = self.deliver()
        {
            log::error!("{error}");
        }
        self.peers.leave();
        // GROUP-7
        self.door = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_can_change_threads_and_be_aborted_and_looked_at_from_others() {
        fn moves<T: Send>() {}
        fn is_shared<T: Send + Sync + Clone>() {}
        moves::<Group>();
        is_shared::<Aborter>();
        is_shared::<ActivityReader>();
    }
}
