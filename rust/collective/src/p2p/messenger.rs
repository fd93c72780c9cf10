//! A rank's end of its messages: several threads may use it, while another runs an operation of the group.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::call::{Call, Operation};
use crate::connections::SENTINEL;
use crate::p2p::mailbox::Mailboxes;
use crate::peers::Peers;
use crate::shm::{RankRecord, Segment};

/// How long a sender stays while the receiver takes nothing. What is left is sent by later calls (SEND-3).
const SEND_PATIENCE: Duration = Duration::from_millis(2);
/// The same while there is no connection to the receiver yet: that its door opens it, three round trips, doesn't
/// depend on what its program does.
const OPENING_PATIENCE: Duration = Duration::from_secs(1);
/// Between looks where the doorbell doesn't wake: with shared memory, and with sockets alone, which do wake.
const SHORT_NAP: Duration = Duration::from_micros(100);
const LONG_NAP: Duration = Duration::from_millis(20);
/// Offers of the processor before that.
const YIELDS: u32 = 60;

/// Sends and receives beside the group's operations (SEND-4). Cheap to clone; [`crate::Group::messenger`] makes it.
///
/// A failure breaks the group, as a failed operation does.
#[derive(Clone)]
pub struct Messenger {
    world_size: usize,
    mailboxes: Arc<Mutex<Mailboxes>>,
    peers: Arc<Peers>,
    /// The memory of this rank's host and its number there, where it has company.
    host: Option<(Arc<Segment>, usize)>,
}

impl Messenger {
    pub(crate) fn new(
        mailboxes: Mailboxes,
        world_size: usize,
        peers: Arc<Peers>,
        host: Option<(Arc<Segment>, usize)>,
    ) -> Messenger {
        Messenger { world_size, mailboxes: Arc::new(Mutex::new(mailboxes)), peers, host }
    }

    /// Sends a message, as [`crate::Group::send`].
    pub fn send(&self, buffer: &[u8], to: usize, tag: u64) -> Result<()> {
        let call = self.send_call(buffer, to)?;
        self.attempt(call, || self.hand_over(buffer, to, tag))
    }

    /// Receives a message if it has arrived already, as [`crate::Group::try_recv`].
    pub fn try_recv(&self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
        let call = self.recv_call(buffer, from)?;
        self.attempt(call, || {
            self.mailboxes().progress()?;
            self.take(buffer, from, tag)
        })
    }

    /// Moves messages for at most `patience`, or until some have moved; whether some still wait to be handed over.
    /// For a thread that has nothing else to do.
    pub fn progress(&self, patience: Duration) -> Result<bool> {
        self.attempt(Call::new(Operation::Send), || {
            let seen = self.doorbell();
            if !self.mailboxes().progress()? && !patience.is_zero() {
                self.nap(seen, None, patience)?;
                self.mailboxes().progress()?;
            }
            self.can_reach(None)?;
            Ok(self.has_unsent())
        })
    }

    /// Whether messages wait to be handed over: then [`Messenger::progress`] should be called now and then. In a broken
    /// group nothing is handed over any more.
    pub fn has_unsent(&self) -> bool {
        self.mailboxes().has_unsent(None) && self.peers.check().is_ok()
    }

    /// Runs something that is over soon, and no operation for those who look on.
    fn attempt<T>(&self, call: Call, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
        let me = self.peers.me();
        self.peers
            .check()
            .and_then(|()| attempt())
            .map_err(|error| self.peers.break_with(&error).context(format_args!("rank {me}, in {call}")))
    }

    pub(crate) fn send_call(&self, buffer: &[u8], to: usize) -> Result<Call> {
        self.is_rank(to)?;
        Ok(Call::new(Operation::Send).of_bytes(buffer.len()).with_root(to))
    }

    pub(crate) fn recv_call(&self, buffer: &[u8], from: Option<usize>) -> Result<Call> {
        let call = Call::new(Operation::Receive).of_bytes(buffer.len());
        from.map_or(Ok(call), |from| self.is_rank(from).map(|()| call.with_root(from)))
    }

    pub(crate) fn is_rank(&self, rank: usize) -> Result<()> {
        if rank < self.world_size {
            return Ok(());
        }
        let text = format!("there is no rank {rank} in a group of {}", self.world_size);
        Err(Error::new(ErrorKind::Invalid, text))
    }

    /// Posts a message, and stays for it as long as it moves.
    pub(crate) fn hand_over(&self, buffer: &[u8], to: usize, tag: u64) -> Result<()> {
        self.mailboxes().post(to, tag, buffer)?;
        let mut moved = Instant::now();
        let waits = |moved: Instant| {
            let mailboxes = self.mailboxes();
            let is_opening = mailboxes.unreached(Some(to)).next().is_some();
            let patience = if is_opening { OPENING_PATIENCE } else { SEND_PATIENCE };
            mailboxes.has_unsent(Some(to)) && moved.elapsed() < patience
        };
        while waits(moved) {
            self.can_reach(Some(to))?;
            let seen = self.doorbell();
            if self.mailboxes().progress()? {
                moved = Instant::now();
            } else {
                self.nap(seen, Some(to), SEND_PATIENCE)?;
            }
        }
        Ok(())
    }

    /// Fails if a message waits for a connection to a rank that has left, or to which none can be opened.
    fn can_reach(&self, to: Option<usize>) -> Result<()> {
        let mut mailboxes = self.mailboxes();
        let Some(connections) = mailboxes.connections() else { return Ok(()) };
        let unreached: Vec<usize> = mailboxes.unreached(to).collect();
        if unreached.iter().any(|rank| self.peers.has_left(*rank)) {
            // What came before its goodbye is here (OPEN-3).
            mailboxes.connect();
        }
        for rank in mailboxes.unreached(to) {
            connections.failure(rank).map_or(Ok(()), Err)?;
            if self.peers.has_left(rank) {
                return Err(Error::new(ErrorKind::PeerLost, format!("rank {rank} has left the group")));
            }
        }
        Ok(())
    }

    /// Sees to it that the end of a rank of another host is heard, from which a message is awaited (PEE-3). Fails if it
    /// has gone before.
    pub(crate) fn listen_to(&self, rank: usize) -> Result<()> {
        let Some(connections) = self.mailboxes().connections() else { return Ok(()) };
        connections.ask((rank, SENTINEL));
        connections.failure(rank).map_or(Ok(()), Err)
    }

    pub(crate) fn mailboxes(&self) -> MutexGuard<'_, Mailboxes> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves messages unless another thread is at it; whether more may come soon.
    pub(crate) fn progress_if_free(&self) -> Result<bool> {
        let mut mailboxes = match self.mailboxes.try_lock() {
            Ok(mailboxes) => mailboxes,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(false),
        };
        mailboxes.progress()?;
        Ok(mailboxes.is_busy())
    }

    pub(crate) fn take(&self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
        let Some((source, bytes)) = self.mailboxes().take(from, tag) else { return Ok(None) };
        if bytes.len() != buffer.len() {
            let text = format!(
                "rank {source} sent {} bytes with tag {tag}, rank {} receives {}",
                bytes.len(),
                self.peers.me(),
                buffer.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        buffer.copy_from_slice(&bytes);
        Ok(Some(source))
    }

    /// Where the others of this host leave word for this rank.
    pub(crate) fn record(&self) -> Option<&RankRecord> {
        self.host.as_ref().map(|(segment, local_rank)| segment.rank_record(*local_rank))
    }

    /// The state of this rank's doorbell: changed, messages may have moved.
    pub(crate) fn doorbell(&self) -> u32 {
        self.record().map_or(0, |record| record.doorbell.value())
    }

    fn has_rung(&self, seen: u32) -> bool {
        self.doorbell() != seen
    }

    /// Waits until messages of one rank, or of any, may have moved, for a nap or `patience`; whether they may have.
    /// Others can use the mailboxes meanwhile.
    pub(crate) fn nap(&self, seen: u32, whom: Option<usize>, patience: Duration) -> Result<bool> {
        for _ in 0..YIELDS {
            if self.has_rung(seen) {
                return Ok(true);
            }
            rustix::thread::sched_yield();
        }
        // Sockets and memory at once: in turn, for short whiles.
        let links = self.mailboxes().links(whom);
        let sockets = links.iter().map(|(link, is_writing)| {
            let flags = if *is_writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(&**link), flags)
        });
        let connections = self.mailboxes().connections();
        let news = connections.as_ref().map(|all| PollFd::from_borrowed_fd(all.news(), PollFlags::IN));
        let sockets: Vec<PollFd<'_>> = sockets.chain(news).collect();
        let nap = patience.min(if self.host.is_some() { SHORT_NAP } else { LONG_NAP });
        let nap = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
        let is_ready = self.peers.poll(&sockets, &nap)?;
        Ok(is_ready || self.has_rung(seen))
    }
}
