//! A rank's end of its messages: several threads may use it, while another runs an operation of the group.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::bell::Rings;
use crate::call::{Call, Operation};
use crate::door::connections::{Connections, SENTINEL};
use crate::p2p::mailbox::{Mailboxes, Moved};
use crate::p2p::pipe::Pipe;
use crate::p2p::unsent::Unsent;
use crate::peers::{DELIVERY, Peers};
use crate::wait::has_left;

/// How long a sender stays while the receiver takes nothing. What is left is sent by later calls (GROUP-63).
const SEND_PATIENCE: Duration = Duration::from_millis(2);
/// The same while there is no connection to the receiver yet: that its door opens it, three round trips, doesn't
/// depend on what its program does.
const OPENING_PATIENCE: Duration = Duration::from_secs(1);
/// Offers of the processor before sleep.
const YIELDS: u32 = 60;
/// The longest sleep: some bound.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// Sends and receives beside the group's operations (GROUP-64). Cheap to clone; [`crate::Group::messenger`] makes it.
///
/// A failure breaks the group, as a failed operation does. That a rank has left is none (GROUP-66).
#[derive(Clone)]
pub struct Messenger {
    world_size: usize,
    mailboxes: Arc<Mutex<Mailboxes>>,
    /// To ranks of other hosts, where there are any.
    connections: Option<Arc<Connections>>,
    peers: Arc<Peers>,
}

/// What became of a message that was looked for.
pub(crate) enum Sought {
    /// It is there, from this rank.
    Found(usize),
    NotYet,
    /// It will not come.
    Never(Error),
}

impl Messenger {
    pub(crate) fn new(
        pipes: Vec<Option<Pipe>>,
        connections: Option<Arc<Connections>>,
        peers: Arc<Peers>,
    ) -> Messenger {
        let world_size = pipes.len();
        let mailboxes = Arc::new(Mutex::new(Mailboxes::new(pipes, connections.clone())));
        Messenger { world_size, mailboxes, connections, peers }
    }

    /// Sends a message, as [`crate::Group::send`].
    pub fn send(&self, buffer: &[u8], to: usize, tag: u64) -> Result<()> {
        let call = self.send_call(buffer, to)?;
        let refused = self.attempt(call, || self.hand_over(buffer, to, tag))?;
        refused.map_or(Ok(()), |error| Err(self.in_call(call, error)))
    }

    /// Receives a message if it has arrived already, as [`crate::Group::try_recv`].
    pub fn try_recv(&self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
        self.progress(Duration::ZERO)?;
        self.take(buffer, from, tag)
    }

    /// The same without a look at what arrives: for several messages after one [`Messenger::progress`].
    pub fn take(&self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
        let call = self.recv_call(buffer, from)?;
        match self.attempt(call, || self.seek(buffer, from, tag))? {
            Sought::Found(source) => Ok(Some(source)),
            Sought::NotYet => Ok(None),
            Sought::Never(error) => Err(self.in_call(call, error)),
        }
    }

    /// Moves messages for at most `patience`, or until some have moved; whether some still wait to be handed over.
    /// For a thread that has nothing else to do.
    pub fn progress(&self, patience: Duration) -> Result<bool> {
        self.attempt(Call::new(Operation::Send), || {
            let rings = self.rings();
            if !self.advance()? && !patience.is_zero() {
                self.sleep(rings, patience)?;
                self.advance()?;
            }
            Ok(self.has_unsent())
        })
    }

    /// Whether messages wait to be handed over: then [`Messenger::progress`] should be called now and then. In a broken
    /// group nothing is handed over any more.
    pub fn has_unsent(&self) -> bool {
        self.mailboxes().has_unsent(None) && self.peers.check().is_ok()
    }

    /// How often something has happened that [`Messenger::wait`] ends for: to be read before it is looked for.
    pub fn rings(&self) -> Rings {
        self.peers.bell().read()
    }

    /// Sleeps until messages may have moved, a rank may be gone, or another thread [rings](Messenger::ring); unless
    /// that has happened since `rings` were read. For at most `patience`, and now and then for less.
    ///
    /// # Errors
    /// Why the group is broken.
    pub fn wait(&self, rings: Rings, patience: Duration) -> Result<()> {
        self.attempt(Call::new(Operation::Receive), || self.sleep(rings, patience))
    }

    /// Wakes the threads that [wait](Messenger::wait).
    pub fn ring(&self) {
        self.peers.bell().ring();
    }

    /// Runs something that is over soon, and no operation for those who look on.
    fn attempt<T>(&self, call: Call, attempt: impl FnOnce() -> Result<T>) -> Result<T> {
        self.peers
            .check()
            .and_then(|()| attempt())
            .map_err(|error| self.in_call(call, self.peers.break_with(&error)))
    }

    pub(crate) fn in_call(&self, call: Call, error: Error) -> Error {
        error.context(format_args!("rank {}, in {call}", self.peers.me()))
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

    /// Posts a message, and stays for it as long as it moves; why it isn't sent, if its receiver is gone.
    pub(crate) fn hand_over(&self, buffer: &[u8], to: usize, tag: u64) -> Result<Option<Error>> {
        if let Some(error) = self.gone(to) {
            self.peers.check()?;
            return Ok(Some(error));
        }
        let posted = self.mailboxes().post(to, tag, buffer);
        self.follow_up(posted)?;
        let mut moved = Instant::now();
        loop {
            let rings = self.rings();
            {
                let mut mailboxes = self.mailboxes();
                if !mailboxes.has_unsent(Some(to)) {
                    let is_lost = mailboxes.withdraw(to);
                    drop(mailboxes);
                    if !is_lost {
                        return Ok(None);
                    }
                    self.peers.check()?;
                    return Ok(self.gone(to));
                }
                let patience = if mailboxes.is_opening(to) { OPENING_PATIENCE } else { SEND_PATIENCE };
                if moved.elapsed() >= patience {
                    break;
                }
            }
            if self.advance()? {
                moved = Instant::now();
            } else {
                self.sleep(rings, SEND_PATIENCE)?;
            }
        }
        // Whoever waits for messages goes on with it.
        self.ring();
        Ok(None)
    }

    /// Why nothing can be sent to a rank any more, if that is so: it has left, or can't be reached.
    fn gone(&self, rank: usize) -> Option<Error> {
        if self.peers.has_left(rank) {
            return Some(has_left(rank));
        }
        self.connections.as_ref()?.failure(rank)
    }

    /// Takes a message that has arrived.
    pub(crate) fn seek(&self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Sought> {
        if let Some(source) = self.take_arrived(buffer, from, tag)? {
            return Ok(Sought::Found(source));
        }
        let Some(error) = self.never(from) else { return Ok(Sought::NotYet) };
        // One that failed has said why before it left; what it sent before may have come since.
        self.peers.check()?;
        self.advance()?;
        Ok(match self.take_arrived(buffer, from, tag)? {
            Some(source) => Sought::Found(source),
            None => Sought::Never(error),
        })
    }

    /// Why no more message will come from a rank, or from any, but for what is here, if that is so.
    fn never(&self, from: Option<usize>) -> Option<Error> {
        match from {
            Some(rank) if rank == self.peers.me() => None,
            Some(rank) => {
                self.listen_to(rank);
                self.is_silent(rank).then(|| self.gone(rank)).flatten()
            }
            None => {
                let mut others = (0..self.world_size).filter(|rank| *rank != self.peers.me());
                let all = self.world_size > 1
                    && others.all(|rank| self.peers.has_left(rank) && self.is_silent(rank));
                all.then(|| Error::new(ErrorKind::PeerLost, "all other ranks have left the group"))
            }
        }
    }

    /// Sees to it that the end of a rank of another host is heard, from which a message is awaited (GROUP-70).
    fn listen_to(&self, rank: usize) {
        if let Some(connections) = &self.connections
            && !self.peers.is_local(rank)
        {
            connections.ask((rank, SENTINEL));
        }
    }

    /// Whether all that a rank has sent is here, if it is gone. What one of another host sent may be overtaken by its
    /// goodbye, and ends with its connection; or it doesn't come.
    fn is_silent(&self, rank: usize) -> bool {
        let mailboxes = self.mailboxes();
        if self.peers.is_local(rank) || mailboxes.has_ended(rank) {
            return true;
        }
        let last = self.peers.left(rank).max(mailboxes.heard(rank));
        last.is_some_and(|last| last.elapsed() > DELIVERY)
    }

    /// The bytes that wait to be handed over.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.mailboxes().unsent_bytes()
    }

    /// What is lost, since its receiver is gone, and what waits to be handed over.
    pub(crate) fn undelivered(&self) -> [Vec<Unsent>; 2] {
        let mailboxes = self.mailboxes();
        [mailboxes.lost(), mailboxes.unsent()]
    }

    fn mailboxes(&self) -> MutexGuard<'_, Mailboxes> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves what can be moved now; whether anything did.
    pub(crate) fn advance(&self) -> Result<bool> {
        let moved = self.mailboxes().progress(|rank| self.gone(rank).is_some());
        self.follow_up(moved)
    }

    /// Moves messages unless another thread is at it; whether more may come soon.
    pub(crate) fn progress_if_free(&self) -> Result<bool> {
        let (moved, is_busy) = {
            let mut mailboxes = match self.mailboxes.try_lock() {
                Ok(mailboxes) => mailboxes,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return Ok(false),
            };
            let moved = mailboxes.progress(|rank| self.gone(rank).is_some());
            (moved, mailboxes.is_busy())
        };
        self.follow_up(moved)?;
        Ok(is_busy)
    }

    /// Tells others of what moved; whether anything did. Fails if a connection broke, but to a rank that has left.
    fn follow_up(&self, moved: Moved) -> Result<bool> {
        if moved.is_news {
            self.ring();
        }
        for (rank, error) in moved.broken {
            if !self.peers.leaves_now(rank)? {
                let text =
                    format!("rank {rank} can't be reached: its connection for messages broke: {error}");
                return Err(Error::new(ErrorKind::PeerLost, text));
            }
        }
        Ok(moved.is_some)
    }

    fn take_arrived(&self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
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

    /// [`Messenger::wait`], where a failure is the caller's.
    pub(crate) fn sleep(&self, rings: Rings, patience: Duration) -> Result<()> {
        for _ in 0..YIELDS {
            if self.rings() != rings {
                return Ok(());
            }
            rustix::thread::sched_yield();
        }
        let links = self.mailboxes().links();
        // Its connection may stay open though it has left; then it is silent for long.
        let is_leaving = links.iter().any(|(rank, ..)| self.peers.has_left(*rank));
        let patience = patience.min(if is_leaving { DELIVERY } else { LONGEST_SLEEP });
        let nap = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        let slept = self.peers.bell().sleep_unless_rung(rings, |bells| {
            let sockets = links.iter().map(|(_, link, is_writing)| {
                let flags = if *is_writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                PollFd::from_borrowed_fd(std::os::fd::AsFd::as_fd(&**link), flags)
            });
            let bells = bells.iter().map(|bell| PollFd::from_borrowed_fd(*bell, PollFlags::IN));
            self.peers.poll(&sockets.chain(bells).collect::<Vec<_>>(), &nap)
        });
        slept.unwrap_or(Ok(false)).map(drop)
    }
}
