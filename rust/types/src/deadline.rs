//! A point in monotonic time by which something must have happened.
//!
//! Deadlines are passed down instead of durations, so that a wait made of several steps ends on time as a whole,
//! and a change of the wall clock changes nothing.

use std::time::{Duration, Instant};

/// A point in monotonic time, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// `after` from now. Durations too long for the clock mean never.
    pub fn after(after: Duration) -> Self {
        Deadline(Instant::now().checked_add(after))
    }

    /// No deadline.
    pub const fn never() -> Self {
        Deadline(None)
    }

    /// The instant itself; `None` for never.
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// How long is left at `now`: zero once passed, `None` for never.
    pub fn left_at(self, now: Instant) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(now))
    }

    /// How long is left now: zero once passed, `None` for never.
    pub fn left(self) -> Option<Duration> {
        self.left_at(Instant::now())
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }

    /// The earlier of the two.
    #[must_use]
    pub fn min(self, other: Deadline) -> Deadline {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Deadline(Some(a.min(b))),
            (a, b) => Deadline(a.or(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_of_zero_has_passed_and_never_has_not() {
        assert!(Deadline::after(Duration::ZERO).passed());
        assert!(!Deadline::never().passed());
        assert!(Deadline::never().left().is_none());
        assert!(!Deadline::after(Duration::MAX).passed(), "too far away for the clock means never");
    }

    #[test]
    fn min_takes_the_earlier_and_never_loses() {
        let soon = Deadline::after(Duration::from_secs(1));
        let late = Deadline::after(Duration::from_secs(9));
        assert_eq!(soon.min(late), soon);
        assert_eq!(Deadline::never().min(late), late);
    }
}
