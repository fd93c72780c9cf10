//! Point to point: sending and receiving with tags.

use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::call::{Call, Operation};
use crate::group::Group;
use crate::mail::Mail;
use crate::wait::{Waited, Watch};

/// How long a sender stays while the receiver takes nothing. What is left is sent by later calls (MAI-3).
const SEND_PATIENCE: Duration = Duration::from_millis(2);
/// Between looks where the doorbell doesn't wake: with shared memory, and with sockets alone, which do wake.
const SHORT_NAP: Duration = Duration::from_micros(100);
const LONG_NAP: Duration = Duration::from_millis(20);
/// Offers of the processor before that.
const YIELDS: u32 = 60;

impl Group {
    /// Sends a message to a rank. Doesn't wait for the receiver to ask for it: what can't be handed over is kept, and
    /// sent by later calls of this group, or by [`Group::progress`].
    pub fn send(&mut self, buffer: &[u8], to: usize, tag: u64) -> Result<()> {
        self.is_rank(to)?;
        let call = Call::new(Operation::Send).of_bytes(buffer.len()).with_root(to);
        self.run(call, |group, watch| {
            group.mail().post(to, tag, buffer)?;
            let mut moved = Instant::now();
            while group.mail().has_unsent(Some(to)) && moved.elapsed() < SEND_PATIENCE {
                let seen = group.doorbell();
                if group.mail().pump()? {
                    moved = Instant::now();
                } else {
                    group.wait_for_mail(watch, seen, Some(to), SEND_PATIENCE)?;
                }
            }
            Ok(())
        })
    }

    /// Receives the oldest message with this tag, from one rank or from any; returns who sent it.
    ///
    /// # Errors
    /// `ErrorKind::Invalid` if it is not as long as `buffer`.
    pub fn recv(&mut self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<usize> {
        from.map_or(Ok(()), |from| self.is_rank(from))?;
        let call = Call::new(Operation::Receive).of_bytes(buffer.len());
        let call = from.map_or(call, |from| call.with_root(from));
        self.run(call, |group, watch| {
            loop {
                let seen = group.doorbell();
                group.mail().pump()?;
                if let Some(source) = group.take(buffer, from, tag)? {
                    return Ok(source);
                }
                group.wait_for_mail(watch, seen, from, Duration::MAX)?;
            }
        })
    }

    /// The same if it has arrived already; `None` if not.
    pub fn try_recv(&mut self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
        from.map_or(Ok(()), |from| self.is_rank(from))?;
        let call = Call::new(Operation::Receive).of_bytes(buffer.len());
        let call = from.map_or(call, |from| call.with_root(from));
        self.attempt(call, |group| {
            group.mail().pump()?;
            group.take(buffer, from, tag)
        })
    }

    /// Moves messages for at most `patience`, or until some have moved; whether some still wait to be handed over.
    /// For a thread that has nothing else to do.
    pub fn progress(&mut self, patience: Duration) -> Result<bool> {
        let call = Call::new(Operation::Send);
        self.attempt(call, |group| {
            let seen = group.doorbell();
            if !group.mail().pump()? && !patience.is_zero() {
                let idle = || Ok(false);
                group.with_watch(&idle, |group, watch| group.wait_for_mail(watch, seen, None, patience))?;
                group.mail().pump()?;
            }
            Ok(group.mail().has_unsent(None))
        })
    }

    /// Whether messages wait to be handed over: then [`Group::progress`] should be called now and then.
    pub fn has_unsent(&self) -> bool {
        self.mail().has_unsent(None)
    }

    pub(crate) fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, buffer: &mut [u8], from: Option<usize>, tag: u64) -> Result<Option<usize>> {
        let Some((source, bytes)) = self.mail().take(from, tag) else { return Ok(None) };
        if bytes.len() != buffer.len() {
            let text = format!(
                "rank {source} sent {} bytes with tag {tag}, rank {} receives {}",
                bytes.len(),
                self.rank,
                buffer.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        buffer.copy_from_slice(&bytes);
        Ok(Some(source))
    }

    /// The state of this rank's doorbell: changed, messages may have moved.
    fn doorbell(&self) -> u32 {
        self.seat().map_or(0, |seat| seat.doorbell.value())
    }

    /// Waits until messages may have moved, or a nap; `patience` at most.
    fn wait_for_mail(
        &self,
        watch: &Watch<'_>,
        seen: u32,
        whom: Option<usize>,
        patience: Duration,
    ) -> Result<()> {
        let has_changed = |value: u32| value != seen;
        let has_rung = || self.seat().is_some_and(|seat| has_changed(seat.doorbell.value()));
        let is_near = whom.is_some_and(|whom| self.topology.host_of(self.rank).contains(&whom));
        if let (Some(seat), Some(rank), true, Duration::MAX) = (self.seat(), whom, is_near, patience) {
            return watch.until(&seat.doorbell, has_changed, &|| Waited { rank, last_call: None });
        }
        for _ in 0..YIELDS {
            if has_rung() {
                return Ok(());
            }
            rustix::thread::sched_yield();
        }
        // Sockets and memory at once: in turn, for short whiles.
        let mail = self.mail();
        let sockets = mail.sockets(whom).into_iter().map(|(socket, is_writing)| {
            let flags = if is_writing { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            PollFd::from_borrowed_fd(socket, flags)
        });
        let sockets: Vec<PollFd<'_>> = sockets.collect();
        let nap = patience.min(if self.seat().is_some() { SHORT_NAP } else { LONG_NAP });
        let nap = Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
        let is_ready = watch.peers.look(&sockets, &nap)?;
        if is_ready || has_rung() || patience != Duration::MAX {
            return Ok(());
        }
        if mail.ended(whom) {
            watch.not_left(whom)?;
        } else if !mail.is_busy() {
            watch.still_there(whom)?;
        }
        watch.in_time(whom)
    }
}
