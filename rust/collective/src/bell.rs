//! What wakes the threads of a rank that wait for messages: descriptors, so that they can wait for sockets beside it.
//!
//! Whoever changes what such a thread waits for rings. Inside the process an event is raised. Another rank of the host
//! sends a byte to this rank's lifeline ([`crate::bootstrap::host`]), of which it has the other end.
//!
//! - GROUP-4 (no-lost-ring): a thread that reads the bell, looks around and then sleeps is woken by each ring after the
//!   reading. So are all threads that sleep at once.
//! - GROUP-5 (silent): a ring for which nobody sleeps makes no system call.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_types::{Error, Result};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::flag::Flag;
use crate::forks::{Opening, Private};
use crate::shm::Segment;

/// What a bell was read as. It changes with each ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rings {
    here: u32,
    /// By other ranks of the host.
    there: u32,
}

/// A rank's own.
pub(crate) struct Bell {
    rings: Flag,
    event: Private<OwnedFd>,
    host: Option<HostBell>,
    /// How many threads sleep. Who is the last of them silences the bell, and nobody falls asleep meanwhile.
    asleep: Mutex<usize>,
}

/// Where the other ranks of the host ring.
struct HostBell {
    segment: Arc<Segment>,
    local_rank: usize,
    lifeline: Private<UnixStream>,
}

impl Bell {
    /// `host` is the memory of the rank's host, its number there, and its own end of its lifeline.
    pub(crate) fn new(host: Option<(Arc<Segment>, usize, Private<UnixStream>)>) -> Result<Bell> {
        let opening = Opening::begin();
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|event| opening.private(event))
            .map_err(|errno| Error::io("make an event", &errno.into()))?;
        let host = host.map(|(segment, local_rank, lifeline)| HostBell { segment, local_rank, lifeline });
        Ok(Bell { rings: Flag::new(), event, host, asleep: Mutex::new(0) })
    }

    pub(crate) fn read(&self) -> Rings {
        let there = self.host.as_ref().map_or(0, |host| host.doorbell().value());
        Rings { here: self.rings.value(), there }
    }

    /// Rings from this process.
    pub(crate) fn ring(&self) {
        if self.rings.ring() {
            // It can only be full, and then it rings.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }

    /// Calls `sleep` with descriptors of which one is readable after a ring, unless it has rung since it was `read`.
    pub(crate) fn sleep_unless_rung<T>(
        &self,
        read: Rings,
        sleep: impl FnOnce(&[BorrowedFd<'_>]) -> T,
    ) -> Option<T> {
        self.count(|asleep| *asleep += 1);
        let mut slept = None;
        // GROUP-27, for either kind of ring.
        self.rings.sleep_unless(
            |rings| rings != read.here,
            |_, _| match &self.host {
                None => slept = Some(sleep(&[self.event.as_fd()])),
                Some(host) => host.doorbell().sleep_unless(
                    |rings| rings != read.there,
                    |_, _| slept = Some(sleep(&[self.event.as_fd(), host.lifeline.as_fd()])),
                ),
            },
        );
        self.count(|asleep| {
            *asleep -= 1;
            if *asleep == 0 {
                self.silence();
            }
        });
        slept
    }

    fn count(&self, change: impl FnOnce(&mut usize)) {
        change(&mut self.asleep.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn silence(&self) {
        let _ = rustix::io::read(&self.event, &mut [0; 8]);
        let Some(host) = &self.host else { return };
        let mut bytes = [0; 256];
        while recv(&host.lifeline, &mut bytes, RecvFlags::DONTWAIT).is_ok_and(|(count, _)| count == 256) {}
    }
}

impl HostBell {
    fn doorbell(&self) -> &Flag {
        &self.segment.rank_record(self.local_rank).doorbell
    }
}

/// Another rank's of this host, as it is rung from here.
#[derive(Clone)]
pub(crate) struct PeerBell {
    segment: Arc<Segment>,
    local_rank: usize,
    lifeline: Arc<Private<UnixStream>>,
}

impl PeerBell {
    pub(crate) fn new(segment: Arc<Segment>, local_rank: usize, lifeline: Private<UnixStream>) -> PeerBell {
        PeerBell { segment, local_rank, lifeline: Arc::new(lifeline) }
    }

    pub(crate) fn ring(&self) {
        if self.segment.rank_record(self.local_rank).doorbell.ring() {
            // Where it is full it rings, and where its owner has gone nobody listens.
            let _ = send(&*self.lifeline, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Whose bell it is, among the ranks of the host.
    pub(crate) fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// By which the end of its owner is seen: then it is readable, and never before.
    pub(crate) fn lifeline(&self) -> BorrowedFd<'_> {
        self.lifeline.as_fd()
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use phalanx_testkit::eventually;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::intra_host::layout;

    const LONG: Duration = Duration::from_secs(30);

    fn bells() -> (Bell, PeerBell) {
        let (segment, _) = Segment::create(layout(2)).unwrap();
        let segment = Arc::new(segment);
        let (own, seen) = {
            let (opening, (own, seen)) = (Opening::begin(), UnixStream::pair().unwrap());
            (opening.private(own), opening.private(seen))
        };
        let bell = Bell::new(Some((Arc::clone(&segment), 1, own))).unwrap();
        (bell, PeerBell::new(segment, 1, seen))
    }

    /// Whether something was there before the time was over.
    fn wait(fds: &[BorrowedFd<'_>], patience: Duration) -> bool {
        let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        poll(&mut fds, Some(&Timespec::try_from(patience).unwrap())).unwrap() > 0
    }

    #[test]
    fn a_ring_after_the_reading_lets_nobody_sleep_and_one_before_it_is_over() {
        // GROUP-4
        let (bell, peer) = bells();
        for ring in [&(|| bell.ring()) as &dyn Fn(), &|| peer.ring()] {
            let read = bell.read();
            ring();
            assert!(bell.sleep_unless_rung(read, |_| ()).is_none(), "GROUP-4");
            let read = bell.read();
            assert_eq!(bell.sleep_unless_rung(read, |fds| wait(fds, Duration::ZERO)), Some(false), "GROUP-5");
            assert_eq!(
                bell.sleep_unless_rung(read, |fds| {
                    ring();
                    wait(fds, LONG)
                }),
                Some(true),
                "GROUP-4"
            );
            let read = bell.read();
            assert_eq!(bell.sleep_unless_rung(read, |fds| wait(fds, Duration::ZERO)), Some(false));
        }
    }

    #[test]
    fn every_ring_is_heard_by_each_of_several_threads() {
        // GROUP-4: each waits until it has seen the last number, and only rings tell it that there is another.
        const NUMBERS: usize = 2_000;
        let (bell, peer) = bells();
        let (number, seen) = (AtomicUsize::new(0), [const { AtomicUsize::new(0) }; 3]);
        let is_lost = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for mine in &seen {
                scope.spawn(|| {
                    while mine.load(Ordering::Acquire) < NUMBERS {
                        let read = bell.read();
                        let current = number.load(Ordering::Acquire);
                        if current > mine.load(Ordering::Relaxed) {
                            mine.store(current, Ordering::Release);
                        } else if bell.sleep_unless_rung(read, |fds| wait(fds, LONG)) == Some(false) {
                            return is_lost.store(true, Ordering::Release);
                        }
                    }
                });
            }
            for next in 1..=NUMBERS {
                number.store(next, Ordering::Release);
                if next % 2 == 0 {
                    bell.ring()
                } else {
                    peer.ring()
                }
                // Now and then they are all asleep, or about to be.
                let start = Instant::now();
                while next % 8 == 0
                    && seen.iter().any(|seen| seen.load(Ordering::Acquire) < next)
                    && start.elapsed() < LONG
                {
                    std::thread::yield_now();
                }
            }
            eventually("all have seen the last", LONG, || {
                is_lost.load(Ordering::Acquire)
                    || seen.iter().all(|seen| seen.load(Ordering::Acquire) == NUMBERS)
            });
        });
        assert!(!is_lost.load(Ordering::Acquire), "GROUP-4");
    }

    #[test]
    fn a_bell_that_rings_for_long_and_is_not_heard_holds_nobody_up() {
        let (bell, peer) = bells();
        let read = bell.read();
        let rung = bell.sleep_unless_rung(read, |fds| {
            (0..10_000).for_each(|_| peer.ring());
            wait(fds, LONG)
        });
        assert_eq!(rung, Some(true));
        let read = bell.read();
        assert_eq!(bell.sleep_unless_rung(read, |fds| wait(fds, Duration::ZERO)), Some(false));
    }
}
