//! Which other ranks are in the group, and whether they are still there.
//!
//! It owns a lifeline of each other rank of the host ([`crate::host`]), and a [`Link`] to each rank of other hosts.
//! These carry no data. They only carry ends: a goodbye, a failure, or the closing by the kernel when a process has
//! ended. There is no thread: a rank that waits for something looks here now and then.
//!
//! A host that is cut off closes no connection. So a rank that waits also sends a byte, a heartbeat, to each rank of
//! another host now and then. The other kernel acknowledges it, however long the rank itself computes. A kernel that
//! knows of no such connection any more, as after a restart, says so at once. If none answers for as long as the
//! group's options allow, our kernel closes the connection ([`crate::tcp`]). Heartbeats stay in the buffer of a rank
//! that computes, until it looks. [`crate::group`] makes it look once a second, even if it never waits. If a rank
//! doesn't look for very long, no more heartbeats are sent to it.
//!
//! - PEE-1 (death-noticed): when a rank ends without a goodbye, the group fails on every other rank. The error has the
//!   number of that rank, and the kind `PeerLost`.
//! - PEE-2 (told-to-all): a failure on one rank is told to all others. Each rank reports the first failure that it
//!   hears of.
//! - PEE-3 (goodbye): a rank that left in good order fails only those that still wait for it.
//! - PEE-4 (cut-noticed): when a host is cut off for longer than the group's options allow, the ranks that wait fail
//!   within a second more. A rank that is merely late fails no other.
//! - PEE-5 (outage-outlived): without such an option nobody is given up before the kernel gives up, after minutes. A
//!   link may fail over, and a machine may be moved, while ranks train.

use std::io::{self, ErrorKind as IoKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::failure::Failure;
use crate::futex::wake;
use crate::link::Link;
use crate::shm::Segment;
use crate::tcp;

/// First byte of what is said over a connection.
const GOODBYE: u8 = 1;
const FAILURE: u8 = 2;
/// Means nothing but that it has to be acknowledged.
const HEARTBEAT: u8 = 3;
/// How often.
const HEARTBEAT_EVERY: Duration = Duration::from_millis(100);
/// How long what a rank sent before it left may be on its way.
const DELIVERY: Duration = Duration::from_secs(5);
/// How often a rank looks that never waits.
const POLL_EVERY: Duration = Duration::from_secs(1);
/// Bytes of heartbeats that a rank may leave unread, half an hour's, or 78 seconds' if they are encrypted: they are to
/// fit its buffer, or they would seem to be lost. After that a cut is noticed by the kernel's probes.
const MOST_UNREAD: usize = 18_000;

/// A rank of the same host.
pub(crate) struct LocalPeer {
    rank: usize,
    local_rank: usize,
    lifeline: UnixStream,
    /// Its process, where that is another one and can be seen from here: a child that it forked may keep the socket
    /// open, but not this.
    process: Option<(Pid, OwnedFd)>,
    has_left: AtomicBool,
}

impl LocalPeer {
    pub(crate) fn new(rank: usize, local_rank: usize, lifeline: UnixStream, pid: Option<u32>) -> LocalPeer {
        let process = pid
            .and_then(|pid| Pid::from_raw(pid as i32))
            .and_then(|pid| Some((pid, pidfd_open(pid, PidfdFlags::empty()).ok()?)));
        LocalPeer { rank, local_rank, lifeline, process, has_left: AtomicBool::new(false) }
    }
}

/// A rank of another host.
pub(crate) struct RemotePeer {
    rank: usize,
    link: Link,
    /// What has come of a message that is not yet complete.
    heard: Mutex<Vec<u8>>,
    /// Bytes of heartbeats since something came from there.
    unread: AtomicUsize,
    /// What a heartbeat found to be wrong with the connection: the kernel says it once.
    broke: AtomicI32,
    has_left: AtomicBool,
    left: OnceLock<Instant>,
}

impl RemotePeer {
    pub(crate) fn new(rank: usize, link: Link) -> RemotePeer {
        RemotePeer {
            rank,
            link,
            heard: Mutex::new(Vec::new()),
            unread: AtomicUsize::new(0),
            broke: AtomicI32::new(0),
            has_left: AtomicBool::new(false),
            left: OnceLock::new(),
        }
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) fn give_up_after(&self, unacknowledged: Duration) -> Result<()> {
        tcp::give_up_after(self.link.socket(), unacknowledged)
    }

    fn send(&self, message: &[u8]) {
        if !self.has_left.load(Ordering::Relaxed) {
            // At most a few hundred bytes on a link that carries nothing else: they fit its buffer. A peer that is
            // gone needs no message.
            if let Err(error) = self.link.post(message)
                && ![IoKind::WouldBlock, IoKind::Interrupted, IoKind::BrokenPipe].contains(&error.kind())
            {
                self.broke.store(error.raw_os_error().unwrap_or_default(), Ordering::Relaxed);
            }
        }
    }
}

/// All other ranks. Shared with whoever may abort.
pub(crate) struct Peers {
    me: usize,
    local_rank: usize,
    segment: Option<Arc<Segment>>,
    local: Vec<LocalPeer>,
    /// This rank's own end of its lifeline: the others of the host see it close.
    _lifeline: Option<UnixStream>,
    remote: Vec<RemotePeer>,
    last_heartbeat: Mutex<Option<Instant>>,
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Peers {
    pub(crate) fn new(
        me: usize,
        local_rank: usize,
        segment: Option<Arc<Segment>>,
        (local, lifeline): (Vec<LocalPeer>, Option<UnixStream>),
        remote: Vec<RemotePeer>,
    ) -> Peers {
        Peers {
            me,
            local_rank,
            segment,
            local,
            _lifeline: lifeline,
            remote,
            last_heartbeat: Mutex::new(None),
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
        Err(self.adopt(failure, false).error())
    }

    fn known(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Breaks the group with this failure, unless it is broken already; the failure that it is broken by.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        self.adopt(failure, true)
    }

    /// Breaks the group with an operation's error, unless it is broken already; the error to report here.
    pub(crate) fn break_with(&self, error: &Error) -> Error {
        // The others hear of it in the same words.
        let known = self.fail(Failure::new(error.kind(), format!("rank {}: {error}", self.me)));
        if known.text.ends_with(&error.to_string()) { error.clone() } else { known.error() }
    }

    fn adopt(&self, mut failure: Failure, tell: bool) -> Failure {
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
            for local_rank in 0..segment.layout().ranks {
                wake(segment.flag(local_rank));
                let _ = segment.rank_record(local_rank).doorbell.ring();
                wake(&segment.rank_record(local_rank).doorbell);
            }
        }
        if tell {
            let mut message = vec![FAILURE];
            failure.encode(&mut message);
            self.send(&message);
        }
        failure
    }

    /// To the ranks of other hosts. Those of this one have the shared memory.
    fn send(&self, message: &[u8]) {
        self.remote.iter().for_each(|peer| peer.send(message));
    }

    /// PEE-4: a heartbeat to every rank of another host, if it is time.
    fn send_heartbeats(&self) {
        if self.remote.is_empty() {
            return;
        }
        let mut last = self.last_heartbeat.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < HEARTBEAT_EVERY) {
            return;
        }
        *last = Some(Instant::now());
        drop(last);
        for peer in &self.remote {
            if peer.unread.fetch_add(peer.link.wire_bytes(1), Ordering::Relaxed) < MOST_UNREAD {
                peer.send(&[HEARTBEAT]);
            }
        }
    }

    /// For a rank that isn't waiting: looks at what the others of other hosts said, if it hasn't for a second.
    #[inline]
    pub(crate) fn poll_if_due(&self, now: Instant) -> Result<()> {
        if self.remote.is_empty() {
            return Ok(());
        }
        let last = *self.last_heartbeat.lock().unwrap_or_else(PoisonError::into_inner);
        match last {
            Some(last) if now.duration_since(last) < POLL_EVERY => Ok(()),
            _ => self.poll(&[], &Timespec::default()).map(drop),
        }
    }

    /// Leaves in good order: what this rank owes the others has been delivered.
    pub(crate) fn leave(&self) {
        if let Some(segment) = &self.segment {
            segment.rank_record(self.local_rank).left.store(1, Ordering::Release);
            (0..segment.layout().ranks).for_each(|local_rank| {
                let doorbell = &segment.rank_record(local_rank).doorbell;
                if doorbell.ring() {
                    wake(doorbell);
                }
            });
        }
        self.send(&[GOODBYE]);
    }

    /// Whether a rank has left in good order.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        if let Some(peer) = self.local.iter().find(|peer| peer.rank == rank) {
            return self.segment.as_ref().is_some_and(|segment| {
                segment.rank_record(peer.local_rank).left.load(Ordering::Acquire) == 1
            });
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
    pub(crate) fn poll(&self, also: &[PollFd<'_>], patience: &Timespec) -> Result<bool> {
        self.check()?;
        self.send_heartbeats();
        let mut fds = Vec::with_capacity(also.len() + 2 * self.local.len() + self.remote.len());
        fds.extend(also.iter().map(PollFd::clone));
        let local = self.local.iter().filter(|peer| !peer.has_left.load(Ordering::Relaxed));
        let remote = self.remote.iter().filter(|peer| !peer.has_left.load(Ordering::Relaxed));
        let mut looked_at = Vec::with_capacity(fds.capacity());
        for peer in local {
            fds.push(PollFd::from_borrowed_fd(peer.lifeline.as_fd(), PollFlags::IN | PollFlags::RDHUP));
            looked_at.push(Connection::Local(peer, false));
            if let Some((_, process)) = &peer.process {
                fds.push(PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN));
                looked_at.push(Connection::Local(peer, true));
            }
        }
        for peer in remote {
            fds.push(PollFd::from_borrowed_fd(peer.link.as_fd(), PollFlags::IN | PollFlags::RDHUP));
            looked_at.push(Connection::Remote(peer));
        }
        match event::poll(&mut fds, Some(patience)) {
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
        Err(self.fail(Failure::new(ErrorKind::PeerLost, text)).error())
    }

    fn hear_remote(&self, peer: &RemotePeer) -> Result<()> {
        let mut heard = peer.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; 2048];
        // All of it: what a link has decrypted wakes nobody.
        let end = loop {
            match peer.link.read(&mut bytes) {
                Ok(0) => {
                    break Some(match peer.broke.load(Ordering::Relaxed) {
                        0 => "it has closed its connection".to_owned(),
                        errno => format!("its connection broke: {}", io::Error::from_raw_os_error(errno)),
                    });
                }
                Ok(count) => {
                    peer.unread.store(0, Ordering::Relaxed);
                    // Nothing comes before the end but heartbeats.
                    let heartbeats = if heard.is_empty() {
                        bytes[..count].iter().take_while(|byte| **byte == HEARTBEAT).count()
                    } else {
                        0
                    };
                    heard.extend_from_slice(&bytes[heartbeats..count]);
                }
                Err(error) if error.kind() == IoKind::WouldBlock => break None,
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => break Some(format!("its connection broke: {error}")),
            }
        };
        match heard.first() {
            Some(&GOODBYE) => {
                peer.left.get_or_init(Instant::now);
                peer.has_left.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Some(&FAILURE) => {
                if let Some((failure, _)) = Failure::decode(&heard[1..]) {
                    return Err(self.adopt(failure, false).error());
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
                Err(self.fail(Failure::new(ErrorKind::PeerLost, text)).error())
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
