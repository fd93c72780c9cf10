//! The hub's clock: monotonic time, less the time in which its process did not run.
//!
//! HUB-3 (skips-stops): a driver that was stopped (SIGSTOP, a debugger, a frozen container) reads what has come in
//! the meantime before any time-out ends. A node isn't silent if the driver could not hear it. A stop shows in a wait
//! that ends much later than it should, or in work between two waits that takes far longer than any does.

use std::time::{Duration, Instant};

/// A wait that ends so much too late was not held up by other processes.
const LATE: Duration = Duration::from_secs(1);

/// Work between two waits that takes longer counts as stopped, whatever it did: nobody was heard meanwhile.
const LONGEST_WORK: Duration = Duration::from_secs(5);

/// Reads the clock; every method takes the time of [`Instant`].
#[derive(Debug)]
pub(crate) struct Clock {
    skipped: Duration,
    wait_began: Instant,
    /// None before the first has.
    wait_ended: Option<Instant>,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { skipped: Duration::ZERO, wait_began: Instant::now(), wait_ended: None }
    }

    /// The time by this clock.
    pub(crate) fn now(&self, instant: Instant) -> Instant {
        // It never skips more than has passed since it was made.
        instant.checked_sub(self.skipped).unwrap_or(instant)
    }

    /// A wait begins; the time by this clock.
    pub(crate) fn begin_wait(&mut self, instant: Instant) -> Instant {
        let worked = self.wait_ended.map(|ended| instant.saturating_duration_since(ended));
        self.skipped += worked.filter(|worked| *worked > LONGEST_WORK).unwrap_or_default();
        self.wait_began = instant;
        self.now(instant)
    }

    /// A wait ends that was to end by `due` on this clock; the time by it. A wait that ends far too late took no time.
    pub(crate) fn end_wait(&mut self, instant: Instant, due: Option<Instant>) -> Instant {
        if due.is_some_and(|due| self.now(instant) > due.max(self.now(self.wait_began)) + LATE) {
            self.skipped += instant - self.wait_began;
        }
        self.wait_ended = Some(instant);
        self.now(instant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_stopped_between_two_waits_goes_on_where_it_was() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut clock = Clock::new();
        clock.begin_wait(at(1));
        assert_eq!(clock.end_wait(at(2), Some(at(2))), at(2));
        // Its work took 20 s, of which nobody knows what was work.
        assert_eq!(clock.begin_wait(at(22)), at(2), "HUB-3");
        assert_eq!(clock.end_wait(at(22), Some(at(3))), at(2), "HUB-3: what has come is read first");
        assert_eq!(clock.begin_wait(at(24)), at(4), "work that takes 2 s takes 2 s");
    }

    #[test]
    fn a_process_that_was_stopped_goes_on_where_it_was() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut clock = Clock::new();
        assert_eq!(clock.begin_wait(at(10)), at(10));
        assert_eq!(clock.end_wait(at(12), Some(at(12))), at(12), "a wait that ends in time");
        clock.begin_wait(at(12));
        assert_eq!(clock.end_wait(at(100), Some(at(15))), at(12), "HUB-3");
        clock.begin_wait(at(101));
        assert_eq!(clock.end_wait(at(103), Some(at(15))), at(15), "and goes on from there");
        clock.begin_wait(at(103));
        assert_eq!(clock.end_wait(at(1003), None), at(915), "a wait without an end is never late");
        clock.begin_wait(at(1003));
        assert_eq!(
            clock.end_wait(at(1004), Some(at(20))),
            at(916),
            "what was due before the wait makes it not late"
        );
    }
}
