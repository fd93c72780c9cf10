//! Who else is in the group, and whether they still are.
//!
//! Owns one connection to every other rank: a unix socket inside a host, a TCP socket between hosts. They carry no
//! data, only ends: a goodbye, a failure, or the silence of a process that the kernel has cleaned up after.
//! There is no thread: whoever waits for something looks here now and then.
//!
//! A host that is cut off closes nothing. Whoever waits therefore also sends a byte, a beat, to each rank of another
//! host now and then: its kernel acknowledges it, however long the rank itself computes. If none does, ours closes the
//! connection ([`crate::tcp`]). Beats stay in the buffer of a rank that computes until it looks, which [`crate::group`]
//! has it do once a second even if it never waits; to one that doesn't for very long, no more are sent.
//!
//! - PEE-1: a rank that ends without a goodbye fails the group on every other rank, with its number in the error.
//! - PEE-2: a failure on one rank is told to all others; each reports the first that it hears of.
//! - PEE-3: a rank that left in good order fails only those that still wait for it.
//! - PEE-4: a rank of a host that is cut off fails those that wait, within a second; one that is late, nobody.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::futex;

use crate::failure::Failure;
use crate::flag::Flag;
use crate::shm::Segment;

/// First byte of what is said over a connection.
const GOODBYE: u8 = 1;
const FAILURE: u8 = 2;
/// Means nothing but that it has to be acknowledged.
const BEAT: u8 = 3;
/// How often.
const BEAT_EVERY: Duration = Duration::from_millis(100);
/// How long what a rank sent before it left may be on its way.
const DELIVERY: Duration = Duration::from_secs(5);
/// How often a rank looks that never waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Beats that a rank may leave unread, half an hour's: they are to fit its buffer, or they would seem to be lost. After
/// that a cut is noticed by the kernel's probes, in two seconds.
const MOST_UNREAD: u32 = 18_000;

/// A rank of the same host.
pub(crate) struct LocalPeer {
    rank: usize,
    /// Its place among the ranks of the host.
    seat: usize,
    socket: UnixStream,
    /// Its process, where that is another one and can be seen from here: a child that it forked may keep the socket
    /// open, but not this.
    process: Option<(Pid, OwnedFd)>,
    has_left: AtomicBool,
}

impl LocalPeer {
    pub(crate) fn new(rank: usize, seat: usize, socket: UnixStream, pid: Option<u32>) -> LocalPeer {
        let process = pid
            .and_then(|pid| Pid::from_raw(pid as i32))
            .and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
        LocalPeer { rank, seat, socket, process, has_left: AtomicBool::new(false) }
    }
}

/// A rank of another host.
pub(crate) struct RemotePeer {
    rank: usize,
    socket: TcpStream,
    /// What has come of a message that is not yet complete.
    heard: Mutex<Vec<u8>>,
    /// Beats since something came from there.
    unread: AtomicU32,
    /// What a beat found to be wrong with the connection: the kernel says it once.
    broke: AtomicI32,
    has_left: AtomicBool,
    left: OnceLock<Instant>,
}

impl RemotePeer {
    pub(crate) fn new(rank: usize, socket: TcpStream) -> RemotePeer {
        RemotePeer {
            rank,
            socket,
            heard: Mutex::new(Vec::new()),
            unread: AtomicU32::new(0),
            broke: AtomicI32::new(0),
            has_left: AtomicBool::new(false),
            left: OnceLock::new(),
        }
    }

    fn say(&self, message: &[u8]) {
        if !self.has_left.load(Ordering::Relaxed) {
            // At most a few hundred bytes on a socket that carries nothing else: they fit its buffer. A peer that is
            // gone needs no message.
            let sent = send(&self.socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            if let Err(errno) = sent
                && ![Errno::AGAIN, Errno::INTR, Errno::PIPE].contains(&errno)
            {
                self.broke.store(errno.raw_os_error(), Ordering::Relaxed);
            }
        }
    }
}

/// All other ranks. Shared with whoever may abort.
pub(crate) struct Peers {
    me: usize,
    seat: usize,
    segment: Option<Arc<Segment>>,
    local: Vec<LocalPeer>,
    remote: Vec<RemotePeer>,
    last_beat: Mutex<Option<Instant>>,
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Peers {
    pub(crate) fn new(
        me: usize,
        seat: usize,
        segment: Option<Arc<Segment>>,
        local: Vec<LocalPeer>,
        remote: Vec<RemotePeer>,
    ) -> Peers {
        Peers {
            me,
            seat,
            segment,
            local,
            remote,
            last_beat: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            failure: Mutex::new(None),
        }
    }

    /// The failure of the group, if there is one: a load or two, no system call.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(self
                .known()
                .as_ref()
                .map_or_else(|| Error::new(ErrorKind::Closed, "failed"), Failure::error));
        }
        match &self.segment {
            Some(segment) if !segment.failure().is_empty() => self.adopt_record(segment),
            _ => Ok(()),
        }
    }

    #[cold]
    fn adopt_record(&self, segment: &Segment) -> Result<()> {
        let Some(failure) = segment.failure().read() else { return Ok(()) };
        Err(self.learn(failure, false).error())
    }

    fn known(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Breaks the group with this failure, unless it is broken already; the failure that it is broken by.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        self.learn(failure, true)
    }

    fn learn(&self, mut failure: Failure, tell: bool) -> Failure {
        if let Some(segment) = &self.segment {
            // FAI-1
            segment.failure().record(&failure);
            failure = segment.failure().read().unwrap_or(failure);
        }
        {
            let mut known = self.known();
            if let Some(known) = &*known {
                return known.clone();
            }
            *known = Some(failure.clone());
        }
        self.has_failed.store(true, Ordering::Release);
        if let Some(segment) = &self.segment {
            for seat in 0..segment.layout().ranks {
                wake(segment.flag(seat));
                let _ = segment.seat(seat).doorbell.ring();
                wake(&segment.seat(seat).doorbell);
            }
        }
        if tell {
            let mut message = vec![FAILURE];
            failure.encode(&mut message);
            self.say(&message);
        }
        failure
    }

    /// To the ranks of other hosts. Those of this one have the shared memory.
    fn say(&self, message: &[u8]) {
        self.remote.iter().for_each(|peer| peer.say(message));
    }

    /// PEE-4: a beat to every rank of another host, if it is time.
    fn beat(&self) {
        if self.remote.is_empty() {
            return;
        }
        let mut last = self.last_beat.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < BEAT_EVERY) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        for peer in &self.remote {
            if peer.unread.fetch_add(1, Ordering::Relaxed) < MOST_UNREAD {
                peer.say(&[BEAT]);
            }
        }
    }

    /// For a rank that isn't waiting: looks at what the others of other hosts said, if it hasn't for a second.
    #[inline]
    pub(crate) fn look_sometimes(&self, now: Instant) -> Result<()> {
        if self.remote.is_empty() {
            return Ok(());
        }
        let last = *self.last_beat.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(last) if now.duration_since(last) < LOOK_EVERY => Ok(()),
            _ => self.look(&[], &Timespec::default()).map(drop),
        }
    }

    /// Leaves in good order: what this rank owes the others has been delivered.
    pub(crate) fn leave(&self) {
        if let Some(segment) = &self.segment {
            segment.seat(self.seat).left.store(1, Ordering::Release);
            let seats = 0..segment.layout().ranks;
            seats.for_each(|seat| {
                let doorbell = &segment.seat(seat).doorbell;
                if doorbell.ring() {
                    wake(doorbell);
                }
            });
        }
        self.say(&[GOODBYE]);
    }

    /// Whether a rank has left in good order.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        if let Some(peer) = self.local.iter().find(|peer| peer.rank == rank) {
            return self
                .segment
                .as_ref()
                .is_some_and(|segment| segment.seat(peer.seat).left.load(Ordering::Acquire) == 1);
        }
        self.remote.iter().any(|peer| peer.rank == rank && peer.has_left.load(Ordering::Relaxed))
    }

    /// Whether nothing more will come from a rank. What one of another host sent before it left may be overtaken by
    /// its goodbye: its other connections end when all has arrived, and this is for those that don't.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        match self.remote.iter().find(|peer| peer.rank == rank) {
            Some(peer) => peer.left.get().is_some_and(|left| left.elapsed() > DELIVERY),
            None => self.has_left(rank),
        }
    }

    /// Looks at every connection, for at most `patience` if nothing is there and none of `also` is ready; whether one
    /// of these is. A system call: for those who have waited a while.
    pub(crate) fn look(&self, also: &[PollFd<'_>], patience: &Timespec) -> Result<bool> {
        self.check()?;
        self.beat();
        let mut fds = Vec::with_capacity(also.len() + 2 * self.local.len() + self.remote.len());
        fds.extend(also.iter().map(PollFd::clone));
        let local = self.local.iter().filter(|peer| !peer.has_left.load(Ordering::Relaxed));
        let remote = self.remote.iter().filter(|peer| !peer.has_left.load(Ordering::Relaxed));
        let mut looked_at = Vec::with_capacity(fds.capacity());
        for peer in local {
            fds.push(PollFd::from_borrowed_fd(peer.socket.as_fd(), PollFlags::IN | PollFlags::RDHUP));
            looked_at.push(Connection::Local(peer, false));
            if let Some((_, process)) = &peer.process {
                fds.push(PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN));
                looked_at.push(Connection::Local(peer, true));
            }
        }
        for peer in remote {
            fds.push(PollFd::from_borrowed_fd(peer.socket.as_fd(), PollFlags::IN | PollFlags::RDHUP));
            looked_at.push(Connection::Remote(peer));
        }
        match poll(&mut fds, Some(patience)) {
            Ok(0) | Err(Errno::INTR) => return self.check().map(|()| false),
            Ok(_) => {}
            Err(errno) => return Err(Error::io("look at the group's connections", &errno.into())),
        }
        for (fd, connection) in fds[also.len()..].iter().zip(looked_at) {
            if !fd.revents().is_empty() {
                match connection {
                    Connection::Local(peer, is_process) => self.hear_local(peer, is_process)?,
                    Connection::Remote(peer) => self.hear_remote(peer)?,
                }
            }
        }
        self.check()?;
        Ok(fds[..also.len()].iter().any(|fd| !fd.revents().is_empty()))
    }

    fn hear_local(&self, peer: &LocalPeer, is_process: bool) -> Result<()> {
        if self.has_left(peer.rank) {
            peer.has_left.store(true, Ordering::Relaxed);
            return Ok(());
        }
        // A rank that fails records why before it closes anything: then that is the story.
        self.check()?;
        let LocalPeer { rank, process, .. } = peer;
        let text = match process {
            Some((pid, _)) if is_process => format!("rank {rank} died: its process {pid} has ended"),
            Some((pid, _)) => format!("rank {rank} died: its process {pid} has closed its connection"),
            None => format!("rank {rank} died: it has closed its connection"),
        };
        // PEE-1
        Err(self.fail(Failure::new(ErrorKind::Closed, text)).error())
    }

    fn hear_remote(&self, peer: &RemotePeer) -> Result<()> {
        let mut heard = peer.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; 2048];
        let end = match recv(&peer.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((0, _)) => Some(match peer.broke.load(Ordering::Relaxed) {
                0 => "it has closed its connection".to_owned(),
                errno => format!("its connection broke: {}", io::Error::from_raw_os_error(errno)),
            }),
            Ok((count, _)) => {
                peer.unread.store(0, Ordering::Relaxed);
                // Nothing comes before the end but beats.
                let beats = if heard.is_empty() {
                    bytes[..count].iter().take_while(|byte| **byte == BEAT).count()
                } else {
                    0
                };
                heard.extend_from_slice(&bytes[beats..count]);
                None
            }
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(errno) => Some(format!("its connection broke: {}", io::Error::from(errno))),
        };
        match heard.first() {
            Some(&GOODBYE) => {
                peer.left.get_or_init(Instant::now);
                peer.has_left.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Some(&FAILURE) => {
                if let Some((failure, _)) = Failure::decode(&heard[1..]) {
                    return Err(self.learn(failure, false).error());
                }
            }
            Some(_) => {
                let text = format!("rank {} sent bytes that make no sense", peer.rank);
                return Err(self.fail(Failure::new(ErrorKind::Protocol, text)).error());
            }
            None => {}
        }
        match end {
            // PEE-1
            Some(how) => {
                let text = format!("rank {} died or can't be reached: {how}", peer.rank);
                Err(self.fail(Failure::new(ErrorKind::Closed, text)).error())
            }
            None => Ok(()),
        }
    }

    /// The number of this rank.
    pub(crate) fn me(&self) -> usize {
        self.me
    }
}

#[derive(Clone, Copy)]
enum Connection<'a> {
    /// Whether it is the process, rather than the socket.
    Local(&'a LocalPeer, bool),
    Remote(&'a RemotePeer),
}

/// Wakes all who sleep on a flag.
pub(crate) fn wake(flag: &Flag) {
    // Not private: the sleepers are other processes. Errors can't happen for a mapped, aligned word.
    let _ = futex::wake(flag.word(), futex::Flags::empty(), i32::MAX as u32);
}
