//! A group of ranks: how it is joined, used by one thread at a time, aborted, and left.
//!
//! - GRO-1: every operation ends by its deadline.
//! - GRO-2: after an operation failed the group is broken: it says so at once at every later call, on every rank.
//! - GRO-3: an argument that can't work is an error before anything is sent; the group stays usable.
//! - GRO-4: ranks that call different things all get an error that names both calls.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::event::Timespec;

use crate::activity::{ActivityLog, ActivityReader};
use crate::between::transfer::Wires;
use crate::call::Call;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::host::{self, Host};
use crate::join::{Request, SENTINEL_STREAM, join};
use crate::mail::{Mail, Pipe};
use crate::peers::{LocalPeer, Peers, RemotePeer};
use crate::shm::{Seat, Segment, Steps};
use crate::topology::Topology;
use crate::wait::{Patience, Watch};

/// The connection for messages; those after it are for data.
const MAIL_STREAM: u32 = SENTINEL_STREAM + 1;
/// More sockets than this to one peer only cost.
const MOST_STREAMS: u32 = 16;

/// How long a rank that leaves stays for those who haven't taken its messages yet.
const DELIVERY_PATIENCE: Duration = Duration::from_secs(5);

/// How to join a group. Equal on all ranks, but for `rank`, `address`, `pretended_host` and `activity`.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// The number of this rank.
    pub rank: usize,
    /// How many ranks the group has.
    pub world_size: usize,
    /// Tells this group from others on the same exchange; used once.
    pub name: String,
    /// Where this rank can be reached by ranks of other hosts.
    pub address: IpAddr,
    /// How long joining, and each operation, may take.
    pub timeout: Duration,
    /// Connections to each rank of another host over which data goes in parallel.
    pub streams: u32,
    /// Ranks with different numbers share no memory even where they could: to rehearse several hosts on one.
    pub pretended_host: Option<u32>,
    /// Whether sums and averages of float32 cross between hosts as bfloat16: half the bytes, 8 bits of precision.
    pub wire_bfloat16: bool,
    /// A file to make, from which other processes can read what this rank is doing: see [`crate::read_activity`].
    pub activity: Option<PathBuf>,
}

impl GroupOptions {
    /// Options with defaults: this machine's loopback address, 30 minutes (as torch's gloo), 2 streams.
    pub fn new(rank: usize, world_size: usize, name: impl Into<String>) -> GroupOptions {
        GroupOptions {
            rank,
            world_size,
            name: name.into(),
            address: Ipv4Addr::LOCALHOST.into(),
            timeout: Duration::from_secs(30 * 60),
            streams: 2,
            pretended_host: None,
            wire_bfloat16: false,
            activity: None,
        }
    }

    fn check(&self) -> Result<()> {
        let problem = if self.rank >= self.world_size {
            format!("there is no rank {} in a group of {}", self.rank, self.world_size)
        } else if u32::try_from(self.world_size).is_err() {
            format!("{} ranks are too many", self.world_size)
        } else if !(1..=MOST_STREAMS).contains(&self.streams) {
            format!("{} streams: it must be 1 to {MOST_STREAMS}", self.streams)
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
    /// None where this rank is alone on its host.
    pub(crate) host: Option<Host>,
    /// To the ranks of other hosts.
    pub(crate) wires: Wires,
    pub(crate) wire_bfloat16: bool,
    /// Kept, as new memory costs more than what is done with it.
    pub(crate) scratch: Vec<u8>,
    /// Shared with the operation that runs: whoever waits also moves messages.
    pub(crate) mail: Arc<Mutex<Mail>>,
    segment: Option<Arc<Segment>>,
    my_seat: usize,
    peers: Arc<Peers>,
    patience: Patience,
    timeout: Duration,
    sequence: u64,
    broken: Option<Error>,
    activity: ActivityLog,
    question: Option<Arc<Question>>,
    sockets: Vec<RawFd>,
}

/// What is asked while an operation waits; an error ends it.
type Question = dyn Fn() -> Result<()> + Send + Sync;

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
    /// Joins: returns once all ranks have, and are connected.
    ///
    /// # Errors
    /// `ErrorKind::Timeout` if a rank doesn't join in time, with its number; what `exchange` fails with; errors of
    /// the operating system.
    pub fn join(options: GroupOptions, exchange: &mut dyn Exchange) -> Result<Group> {
        options.check()?;
        let GroupOptions { rank, world_size, timeout, .. } = options;
        let activity = ActivityLog::new(options.activity.as_deref(), rank, world_size)?;
        let request = Request {
            name: &options.name,
            rank,
            world_size,
            address: options.address,
            // One for messages, the others for data.
            streams: 1 + options.streams,
            pretended_host: options.pretended_host,
            layout: host::layout,
            deadline: Deadline::after(timeout),
        };
        let mut joined =
            join(&request, exchange).map_err(|error| error.context(format_args!("rank {rank}")))?;
        let local = joined.local.values().map(|(socket, _)| socket.as_raw_fd());
        let sockets = local.chain(joined.remote.values().map(AsRawFd::as_raw_fd)).collect();
        let ranks = joined.topology.host_of(rank).to_vec();
        let seat = joined.topology.place(rank).1;
        let segment = joined.segment.map(Arc::new);
        let local = ranks.iter().enumerate().filter_map(|(seat, rank)| {
            let (socket, pid) = joined.local.remove(rank)?;
            Some(LocalPeer::new(*rank, seat, socket, pid))
        });
        let local: Vec<LocalPeer> = local.collect();
        let remote = (0..world_size)
            .filter_map(|rank| Some(RemotePeer::new(rank, joined.remote.remove(&(rank, SENTINEL_STREAM))?)));
        let remote: Vec<RemotePeer> = remote.collect();
        let pipes = (0..world_size).map(|peer| match (&segment, ranks.binary_search(&peer)) {
            (Some(segment), Ok(place)) if peer != rank => Some(Pipe::memory(segment, seat, place)),
            _ => joined.remote.remove(&(peer, MAIL_STREAM)).map(Pipe::Socket),
        });
        let mail = Mail::new(pipes.collect());
        let mut links: HashMap<usize, Vec<(u32, TcpStream)>> = HashMap::new();
        for ((peer, stream), socket) in joined.remote {
            links.entry(peer).or_default().push((stream, socket));
        }
        let in_order = |mut link: Vec<(u32, TcpStream)>| {
            link.sort_by_key(|(stream, _)| *stream);
            link.into_iter().map(|(_, socket)| socket).collect()
        };
        let wires = Wires::new(links.into_iter().map(|(peer, link)| (peer, in_order(link))).collect());
        let patience = Patience::of(ranks.len());
        let host = segment.clone().map(|segment| Host::new(Steps::new(segment, seat), ranks));
        Ok(Group {
            rank,
            world_size,
            topology: joined.topology,
            host,
            wires,
            wire_bfloat16: options.wire_bfloat16,
            scratch: Vec::new(),
            mail: Arc::new(Mutex::new(mail)),
            segment: segment.clone(),
            my_seat: seat,
            peers: Arc::new(Peers::new(rank, seat, segment, local, remote)),
            patience,
            timeout,
            sequence: 0,
            broken: None,
            activity,
            question: None,
            sockets,
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

    /// Asks `question` whenever an operation that waits looks around, many times a second, on the thread that waits.
    /// Its error ends the operation, and the group: for programs that can be interrupted.
    pub fn ask_while_waiting(&mut self, question: impl Fn() -> Result<()> + Send + Sync + 'static) {
        self.question = Some(Arc::new(question));
    }

    /// The numbers of its connections to the other ranks. A forked child that keeps them open hides the death of this
    /// rank from other hosts. It has none of the shared memory, and must not use or drop the group.
    pub fn sockets(&self) -> &[RawFd] {
        &self.sockets
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
        self.broken.clone().or_else(|| self.peers.look(&[], &Timespec::default()).err())
    }

    /// Runs an operation: the one place where calls are counted, watched, and where they fail.
    pub(crate) fn run<T>(
        &mut self,
        call: Call,
        operation: impl FnOnce(&mut Group, &Watch<'_>) -> Result<T>,
    ) -> Result<T> {
        self.is_whole()?;
        self.sequence += 1;
        self.activity.begin(self.sequence, call);
        let (mail, question) = (Arc::clone(&self.mail), self.question.clone());
        let idle = || {
            question.as_ref().map_or(Ok(()), |question| question())?;
            let mut mail = mail.lock().unwrap_or_else(PoisonError::into_inner);
            mail.pump()?;
            Ok(mail.is_busy())
        };
        let result = self.with_watch(&idle, |group, watch| {
            watch.peers.check()?;
            watch.peers.look_sometimes(watch.start)?;
            operation(group, watch)
        });
        self.activity.end();
        result.map_err(|error| self.break_with(call, &error))
    }

    /// Runs something that is over at once, and no operation for those who look on.
    pub(crate) fn attempt<T>(
        &mut self,
        call: Call,
        attempt: impl FnOnce(&mut Group) -> Result<T>,
    ) -> Result<T> {
        self.is_whole()?;
        let result = self.peers.check().and_then(|()| attempt(self));
        result.map_err(|error| self.break_with(call, &error))
    }

    pub(crate) fn with_watch<T>(
        &mut self,
        idle: &dyn Fn() -> Result<bool>,
        run: impl FnOnce(&mut Group, &Watch<'_>) -> Result<T>,
    ) -> Result<T> {
        let peers = Arc::clone(&self.peers);
        let Group { patience, timeout, .. } = *self;
        run(self, &Watch { peers: &peers, patience, timeout, start: Instant::now(), idle })
    }

    /// GRO-2
    fn is_whole(&self) -> Result<()> {
        match &self.broken {
            Some(error) => Err(error.clone().context("the group is broken")),
            None => Ok(()),
        }
    }

    /// Where the others of this host leave word for this rank.
    pub(crate) fn seat(&self) -> Option<&Seat> {
        self.segment.as_ref().map(|segment| segment.seat(self.my_seat))
    }

    /// The host, if it has all ranks.
    pub(crate) fn only_host(&mut self) -> Option<&mut Host> {
        self.host.as_mut().filter(|_| self.topology.hosts.len() == 1)
    }

    /// Hands over what was sent, as long as someone takes it.
    fn deliver(&mut self) {
        let mut moved = Instant::now();
        while self.broken.is_none()
            && self.has_unsent()
            && moved.elapsed() < self.timeout.min(DELIVERY_PATIENCE)
        {
            match self.progress(Duration::from_millis(1)) {
                Ok(true) if !self.has_unsent() => moved = Instant::now(),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }

    #[cold]
    fn break_with(&mut self, call: Call, error: &Error) -> Error {
        let Group { rank, sequence, .. } = *self;
        // The others hear of it in the same words.
        let known = self.peers.fail(Failure::new(error.kind(), format!("rank {rank}: {error}")));
        let story = if known.text.ends_with(&error.to_string()) { error.clone() } else { known.error() };
        let error = story.context(format_args!("rank {rank}, in {call}, its operation {sequence}"));
        self.broken = Some(error.clone());
        error
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() && self.broken.is_none() {
            let text = format!("rank {} panicked", self.rank);
            self.peers.fail(Failure::new(ErrorKind::Closed, text));
        }
        self.deliver();
        self.peers.leave();
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
