//! How a rank waits for another: it spins, then gives way, then sleeps.
//!
//! - GROUP-81 (no-system-call): if the others have reached a step, or reach it while the rank spins, the wait makes no
//!   system call.
//! - GROUP-82 (sleeps): a rank that waits longer than a fraction of a time slice sleeps, so that the others get the
//!   processor if there are more ranks than processors.
//! - GROUP-83 (ends): every wait ends: with what was waited for, at the deadline, on a failure of the group, or when
//!   the rank that is waited for has left.

use std::io;
use std::time::{Duration, Instant};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, Timespec};

use crate::call::Call;
use crate::flag::Flag;
use crate::futex::sleep_unless;
use crate::peers::Peers;

/// Spins before the processor is first offered to others: about 5 us (a pause takes 20 to 50 ns), in which a peer that
/// is running arrives. Longer spins hurt whenever two ranks share a processor, which a scheduler may do to them even
/// where others are free.
const SPINS: u32 = 60;
/// Offers before sleep. One costs a fraction of a microsecond if nobody else wants the processor; together they bridge
/// what two ranks differ by within an operation.
const YIELDS: u32 = 300;
/// The longest sleep: how often the connections are looked at. A dead rank is noticed within one.
pub(crate) const NAP: Duration = Duration::from_millis(25);
/// The longest while messages are on their way that nothing wakes us for.
const SHORT_NAP: Duration = Duration::from_micros(500);

/// For how long this rank spins; depends on how many share the processors.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SpinPolicy {
    spins: u32,
}

impl SpinPolicy {
    /// For `ranks` on this host, with as many processors as this process may use.
    pub(crate) fn of(ranks: usize) -> SpinPolicy {
        let processors = rustix::thread::sched_getaffinity(None).map_or(1, |set| set.count() as usize);
        // With fewer processors than ranks, who is waited for may be waiting for this processor.
        SpinPolicy { spins: if ranks <= processors { SPINS } else { 0 } }
    }
}

/// One wait, or the waits of one operation: what ends them.
pub(crate) struct Watch<'a> {
    /// The operation that waits.
    pub(crate) call: Call,
    pub(crate) peers: &'a Peers,
    pub(crate) spin_policy: SpinPolicy,
    pub(crate) start: Instant,
    pub(crate) timeout: Duration,
    /// What else there is to do while nothing happens; whether more of it may come soon.
    pub(crate) idle: &'a dyn Fn() -> Result<bool>,
}

impl Watch<'_> {
    /// Waits until `is_so` of the flag's value. `whom` it waits for, for the error.
    pub(crate) fn until(
        &self,
        flag: &Flag,
        is_so: impl Fn(u32) -> bool,
        whom: &dyn Fn() -> AwaitedRank,
    ) -> Result<()> {
        for _ in 0..self.spin_policy.spins {
            if is_so(flag.value()) {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        for _ in 0..YIELDS {
            if is_so(flag.value()) {
                return Ok(());
            }
            rustix::thread::sched_yield();
        }
        self.peers.check()?;
        let mut is_busy = (self.idle)()?;
        let mut looked = Instant::now();
        loop {
            let nap = self.nap(is_busy);
            sleep_unless(flag, &is_so, &nap);
            if is_so(flag.value()) {
                return Ok(());
            }
            self.peers.check()?;
            let now = Instant::now();
            if is_busy {
                is_busy = (self.idle)()?;
            }
            if now.duration_since(looked) >= NAP / 2 {
                looked = now;
                self.peers.poll(&[], &Timespec::default())?;
                is_busy = (self.idle)()?;
                let whom = whom();
                // GROUP-70. Whoever left did so after all that it published.
                if self.peers.has_left(whom.rank) && !is_so(flag.value()) {
                    return Err(has_left(whom.rank));
                }
            }
            if now.duration_since(self.start) >= self.timeout {
                return Err(self.timed_out(&whom()));
            }
        }
    }

    fn nap(&self, is_busy: bool) -> Timespec {
        let left = self.timeout.saturating_sub(self.start.elapsed());
        let nap = left.clamp(Duration::from_micros(10), if is_busy { SHORT_NAP } else { NAP });
        Timespec { tv_sec: 0, tv_nsec: i64::from(nap.subsec_nanos()) }
    }

    /// Waits until one of the sockets is ready, or for a nap; whether one is. `whom` it waits for, for the error.
    pub(crate) fn until_ready(&self, sockets: &[PollFd<'_>], whom: &AwaitedRank) -> Result<bool> {
        let is_busy = (self.idle)()?;
        let is_ready = self.peers.poll(sockets, &self.nap(is_busy))?;
        if !is_ready && self.start.elapsed() >= self.timeout {
            return Err(self.timed_out(whom));
        }
        Ok(is_ready)
    }

    /// How long who waits for a rank in another way may do so, before it [looks around](Watch::look_around).
    pub(crate) fn longest_nap(&self, is_busy: bool) -> Duration {
        let nap = self.nap(is_busy);
        Duration::from_nanos(nap.tv_nsec.unsigned_abs())
    }

    /// Moves messages and looks at the others; whether more messages may come soon. Fails as every wait does, but for a
    /// rank that has left.
    pub(crate) fn look_around(&self, whom: usize) -> Result<bool> {
        let is_busy = (self.idle)()?;
        self.peers.poll(&[], &Timespec::default())?;
        self.in_time(Some(whom)).map(|()| is_busy)
    }

    /// Fails at the deadline of a wait for one rank, or for any.
    pub(crate) fn in_time(&self, whom: Option<usize>) -> Result<()> {
        if self.start.elapsed() < self.timeout {
            return Ok(());
        }
        match whom {
            Some(rank) => Err(self.timed_out(&AwaitedRank { rank, last_call: None })),
            None => Err(self.late("a message from any rank")),
        }
    }

    /// Fails if one of the ranks that are waited for is gone, and all that it sent.
    pub(crate) fn still_there(&self, ranks: impl IntoIterator<Item = usize>) -> Result<()> {
        match ranks.into_iter().find(|rank| self.peers.is_gone(*rank)) {
            Some(rank) => Err(has_left(rank)),
            None => Ok(()),
        }
    }

    /// Fails if a rank, of whose connection this is the end, has left.
    pub(crate) fn not_left(&self, rank: Option<usize>) -> Result<()> {
        match rank.filter(|rank| self.peers.has_left(*rank)) {
            Some(rank) => Err(has_left(rank)),
            None => Ok(()),
        }
    }

    /// The error of a connection that carries data and broke: better known from what its sentinel says.
    pub(crate) fn broken_connection(&self, rank: usize, error: &io::Error) -> Error {
        match self.peers.leaves_now(rank) {
            Ok(true) => has_left(rank),
            Ok(false) => {
                let text =
                    format!("rank {rank} died or can't be reached: the connection for data broke: {error}");
                Error::new(ErrorKind::PeerLost, text)
            }
            Err(error) => error,
        }
    }

    /// The error of a deadline that passed.
    fn timed_out(&self, whom: &AwaitedRank) -> Error {
        self.late(&whom.name())
    }

    fn late(&self, whom: &str) -> Error {
        let (seconds, limit) = (self.start.elapsed().as_secs_f64(), self.timeout.as_secs_f64() * 1e3);
        // The last words are gloo's, which programs look for.
        let text = format!(
            "timed out after {seconds:.1} s, still waiting for {whom}; Timed out waiting {limit:.0}ms for it"
        );
        Error::new(ErrorKind::Timeout, text)
    }
}

/// The error of ranks that called different things.
pub(crate) fn mismatch(rank: usize, theirs: Call, me: usize, mine: Call) -> Error {
    Error::new(ErrorKind::Invalid, format!("rank {rank} called {theirs} while rank {me} called {mine}"))
}

pub(crate) fn has_left(rank: usize) -> Error {
    Error::new(ErrorKind::PeerLost, format!("rank {rank} has left the group"))
}

/// A rank that is waited for.
pub(crate) struct AwaitedRank {
    pub(crate) rank: usize,
    /// What it called last, where that can be seen.
    pub(crate) last_call: Option<Call>,
}

impl AwaitedRank {
    fn name(&self) -> String {
        match self.last_call {
            Some(call) if call.operation().is_some() => {
                format!("rank {}, which called {call} last", self.rank)
            }
            _ => format!("rank {}", self.rank),
        }
    }
}
