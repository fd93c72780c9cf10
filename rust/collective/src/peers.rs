//! Which other ranks are in the group, and whether they are still there.
//!
//! It owns a lifeline of each other rank of the host ([`crate::bootstrap::host`]), and sentinels: a [`Link`] to each
//! neighbour on other hosts, and to each rank there with which something is exchanged ([`crate::door::connections`]).
//! These carry no data. They only carry ends: a goodbye, a failure, or the closing by the kernel when a process has
//! ended. Lifelines are looked at by those who wait. Sentinels are heard by the door's thread, whatever the program
//! does meanwhile: whoever hears of a failure tells its own sentinels, so it goes round in as many steps as the hosts'
//! number has bits.
//!
//! A host that is cut off closes no connection. So the kernel probes each sentinel once a second
//! ([`crate::door::tcp`]). The other kernel acknowledges it, however long the rank itself computes. If none does for as
//! long as the group's options allow, our kernel closes the connection.
//!
//! - GROUP-68 (death-noticed): when a rank ends without a goodbye, the group fails on every other rank. The error has
//!   the number of that rank, and the kind `PeerLost`.
//! - GROUP-69 (told-to-all): a failure on one rank is told to all others. Each rank reports the first failure that it
//!   hears of.
//! - GROUP-70 (goodbye): a rank that left in good order fails only those that still wait for it. It takes no end of
//!   another for a death any more: who has heard its goodbye says none to it.
//! - GROUP-71 (cut-noticed): when a host is cut off for longer than the group's options allow, the ranks that wait fail
//!   within a second more, or two seconds after the cut where the options allow less than one. A rank that is merely
//!   late fails no other.
//! - GROUP-72 (outage-outlived): without such an option nobody is given up before the kernel gives up, after minutes. A
//!   link may fail over, and a machine may be moved, while ranks train.

use std::collections::HashMap;
use std::io::ErrorKind as IoKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::bell::{Bell, PeerBell};
use crate::door::link::Link;
use crate::door::tcp;
use crate::failure::Failure;
use crate::forks::{Opening, Private};
use crate::futex::wake;
use crate::shm::Segment;

/// First byte of what is said over a connection.
pub(crate) const GOODBYE: u8 = 1;
const FAILURE: u8 = 2;
/// How long what a rank sent before it left may be on its way, without any of it arriving.
pub(crate) const DELIVERY: Duration = Duration::from_secs(5);
/// How long after another connection to a rank its sentinel may be closed, or its goodbye come.
const SENTINEL_GRACE: Duration = Duration::from_millis(250);
/// How often it is looked meanwhile whether the door's thread has heard that.
const SENTINEL_NAP: Duration = Duration::from_millis(1);

/// A rank of the same host.
pub(crate) struct LocalPeer {
    rank: usize,
    bell: PeerBell,
    /// Its process, where that is another one and can be seen from here: a child that it forked may keep the socket
    /// open, but not this.
    process: Option<(Pid, Private<OwnedFd>)>,
    has_left: AtomicBool,
}

impl LocalPeer {
    pub(crate) fn new(rank: usize, bell: PeerBell, pid: Option<u32>) -> LocalPeer {
        let process = pid.and_then(|pid| Pid::from_raw(pid as i32)).and_then(|pid| {
            let opening = Opening::begin();
            Some((pid, opening.private(pidfd_open(pid, PidfdFlags::empty()).ok()?)))
        });
        LocalPeer { rank, bell, process, has_left: AtomicBool::new(false) }
    }
}

/// A rank of another host, whose end is heard here.
pub(crate) struct RemotePeer {
    rank: usize,
    link: Link,
    /// What has come of a message that is not yet complete.
    heard: Mutex<Vec<u8>>,
    left: OnceLock<Instant>,
}

impl RemotePeer {
    /// To wait at until there is something to hear.
    pub(crate) fn fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.link.as_fd(), PollFlags::IN | PollFlags::RDHUP)
    }

    /// At most a few hundred bytes on a link that carries nothing else: they fit its buffer. Who is gone needs none.
    fn send(&self, message: &[u8]) {
        if self.left.get().is_none() {
            let _ = self.link.post(message);
        }
    }
}

/// Those of other hosts.
#[derive(Default)]
struct Remote {
    peers: HashMap<usize, Arc<RemotePeer>>,
    /// What this rank told all of them: who comes later is told, too.
    told: Vec<u8>,
}

/// All other ranks. Shared with whoever may abort.
pub(crate) struct Peers {
    me: usize,
    local_rank: usize,
    segment: Option<Arc<Segment>>,
    local: Vec<LocalPeer>,
    bell: Bell,
    remote: Mutex<Remote>,
    cut_timeout: Option<Duration>,
    /// Set before anybody can hear this rank's goodbye.
    is_leaving: AtomicBool,
    has_failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

impl Peers {
    pub(crate) fn new(
        me: usize,
        local_rank: usize,
        segment: Option<Arc<Segment>>,
        (local, bell): (Vec<LocalPeer>, Bell),
        cut_timeout: Option<Duration>,
    ) -> Peers {
        Peers {
            me,
            local_rank,
            segment,
            local,
            bell,
            remote: Mutex::default(),
            cut_timeout,
            is_leaving: AtomicBool::new(false),
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
        Err(self.fail(failure).error())
    }

    fn known(&self) -> MutexGuard<'_, Option<Failure>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Breaks the group with an operation's error, unless it is broken already; the error to report here.
    pub(crate) fn break_with(&self, error: &Error) -> Error {
        // The others hear of it in the same words.
        let own = Failure::new(error.kind(), format!("rank {}: {error}", self.me));
        let known = self.fail(own.clone());
        if known == own { error.clone() } else { known.error() }
    }

    /// Breaks the group with this failure, unless it is broken already, and tells it on (GROUP-69); the failure that it
    /// is broken by.
    pub(crate) fn fail(&self, mut failure: Failure) -> Failure {
        if let Some(segment) = &self.segment {
            // GROUP-24
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
            (0..segment.layout().ranks).for_each(|local_rank| wake(segment.flag(local_rank)));
        }
        self.ring();
        let mut message = vec![FAILURE];
        failure.encode(&mut message);
        self.send_to_remote(&message);
        failure
    }

    /// Has all who wait for messages look around, in this process and in the others of the host.
    fn ring(&self) {
        self.bell.ring();
        self.local.iter().for_each(|peer| peer.bell.ring());
    }

    /// What wakes those who wait for messages here.
    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    /// To the ranks of other hosts. Those of this one have the shared memory.
    fn send_to_remote(&self, message: &[u8]) {
        let mut remote = self.remote();
        remote.told.extend_from_slice(message);
        remote.peers.values().for_each(|peer| peer.send(message));
    }

    fn remote(&self) -> MutexGuard<'_, Remote> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears from now on of the end of a rank of another host.
    pub(crate) fn watch(&self, rank: usize, link: Link) {
        if let Err(error) = tcp::watch(link.socket(), self.cut_timeout) {
            log::warn!("rank {}: the sentinel of rank {rank} isn't probed: {error}", self.me);
        }
        let peer = RemotePeer { rank, link, heard: Mutex::default(), left: OnceLock::new() };
        let peer = Arc::new(peer);
        {
            let mut remote = self.remote();
            if !remote.told.is_empty() {
                peer.send(&remote.told);
            }
            remote.peers.insert(rank, Arc::clone(&peer));
        }
        // What came with the handshake wakes nobody.
        self.hear(&peer);
    }

    /// Those that have something to say yet.
    pub(crate) fn sentinels(&self) -> Vec<Arc<RemotePeer>> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let remote = self.remote();
        remote.peers.values().filter(|peer| peer.left.get().is_none()).map(Arc::clone).collect()
    }

    /// Leaves in good order: what this rank owes the others has been delivered.
    pub(crate) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
        if let Some(segment) = &self.segment {
            segment.rank_record(self.local_rank).left.store(1, Ordering::Release);
        }
        self.ring();
        self.send_to_remote(&[GOODBYE]);
    }

    /// Whether a rank is another one of this host.
    pub(crate) fn is_local(&self, rank: usize) -> bool {
        self.local.iter().any(|peer| peer.rank == rank)
    }

    /// Whether a rank has left in good order.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        if let Some(peer) = self.local.iter().find(|peer| peer.rank == rank) {
            return self.segment.as_ref().is_some_and(|segment| {
                segment.rank_record(peer.bell.local_rank()).left.load(Ordering::Acquire) == 1
            });
        }
        self.left(rank).is_some()
    }

    /// Whether nothing more will come from a rank. What one of another host sent before it left may be overtaken by
    /// its goodbye: its other connections end when all has arrived, and this is for those that don't.
    pub(crate) fn is_gone(&self, rank: usize) -> bool {
        match self.left(rank) {
            Some(left) => left.elapsed() > DELIVERY,
            None => self.has_left(rank),
        }
    }

    /// Whether a rank has left in good order, to which a connection broke: a dying process's kernel closes its
    /// sentinel a moment earlier or later, and its goodbye comes by that.
    ///
    /// # Errors
    /// Why the group has failed, which is the better story then.
    pub(crate) fn leaves_now(&self, rank: usize) -> Result<bool> {
        let found = Instant::now();
        let nap = Timespec { tv_sec: 0, tv_nsec: SENTINEL_NAP.subsec_nanos().into() };
        while !self.has_left(rank) {
            if found.elapsed() >= SENTINEL_GRACE {
                return Ok(false);
            }
            self.poll(&[], &nap)?;
        }
        Ok(true)
    }

    /// When a rank of another host said goodbye.
    pub(crate) fn left(&self, rank: usize) -> Option<Instant> {
        self.remote().peers.get(&rank)?.left.get().copied()
    }

    /// Looks at the lifelines, for at most `patience` if nothing is there and none of `also` is ready; whether one of
    /// these is. A system call: for those who have waited a while. What the door's thread hears meanwhile only rings
    /// the [bell](Peers::bell): `patience` is to be short where that isn't among `also`.
    pub(crate) fn poll(&self, also: &[PollFd<'_>], patience: &Timespec) -> Result<bool> {
        self.check()?;
        let mut fds = Vec::with_capacity(also.len() + 2 * self.local.len());
        fds.extend(also.iter().map(PollFd::clone));
        let local = self.local.iter().filter(|peer| !peer.has_left.load(Ordering::Relaxed));
        let mut looked_at = Vec::with_capacity(fds.capacity());
        for peer in local {
            fds.push(PollFd::from_borrowed_fd(peer.bell.lifeline(), PollFlags::IN | PollFlags::RDHUP));
            looked_at.push((peer, false));
            if let Some((_, process)) = &peer.process {
                fds.push(PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN));
                looked_at.push((peer, true));
            }
        }
        match event::poll(&mut fds, Some(patience)) {
            Ok(0) | Err(Errno::INTR) => return self.check().map(|()| false),
            Ok(_) => {}
            Err(errno) => return Err(Error::io("look at the group's connections", &errno.into())),
        }
        for (fd, (peer, is_process)) in fds[also.len()..].iter().zip(looked_at) {
            if !fd.revents().is_empty() {
                self.hear_local(peer, is_process)?;
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
        // GROUP-68
        Err(self.fail(Failure::new(ErrorKind::PeerLost, text)).error())
    }

    /// Hears what a rank of another host says, all of it: what a link has decrypted wakes nobody.
    pub(crate) fn hear(&self, peer: &RemotePeer) {
        let mut heard = peer.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; 2048];
        let end = loop {
            match peer.link.read(&mut bytes) {
                Ok(0) => break Some("it has closed its connection".to_owned()),
                Ok(count) => heard.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == IoKind::WouldBlock => break None,
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => break Some(format!("its connection broke: {error}")),
            }
        };
        let rank = peer.rank;
        let has_left = match heard.first() {
            Some(first) => *first == GOODBYE,
            None => end.is_some() && self.is_leaving.load(Ordering::Acquire), // GROUP-70
        };
        if has_left {
            peer.left.get_or_init(Instant::now);
            self.bell.ring();
            return;
        }
        let said = match heard.first() {
            Some(&FAILURE) => Failure::decode(&heard[1..]).map(|(failure, _)| failure),
            Some(_) => {
                let text = format!("rank {rank} sent invalid bytes");
                Some(Failure::new(ErrorKind::Protocol, text))
            }
            None => None,
        };
        // GROUP-68
        let died = |how| {
            let text = format!("rank {rank} died or can't be reached: {how}");
            Failure::new(ErrorKind::PeerLost, text)
        };
        if let Some(failure) = said.or_else(|| end.map(died)) {
            self.fail(failure);
        }
    }

    /// The number of this rank.
    pub(crate) fn me(&self) -> usize {
        self.me
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn one_that_closes_without_a_goodbye_has_died_unless_this_rank_has_left_before() {
        for has_left in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            stream.set_nonblocking(true).unwrap();
            let other = listener.accept().unwrap().0;
            let peers = Peers::new(0, 0, None, (Vec::new(), Bell::new(None).unwrap()), None);
            peers.watch(1, Link::plain(Opening::begin().private(stream)));
            let sentinels = peers.sentinels();
            if has_left {
                peers.leave();
            }
            drop(other);
            let deadline = Timespec { tv_sec: 30, tv_nsec: 0 };
            assert_eq!(event::poll(&mut [sentinels[0].fd()], Some(&deadline)), Ok(1));
            peers.hear(&sentinels[0]);
            assert_eq!(peers.check().is_ok(), has_left, "GROUP-68, GROUP-70: {:?}", peers.check());
            assert_eq!(peers.has_left(1), has_left);
        }
    }
}
