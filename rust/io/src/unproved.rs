//! Connections that have yet to prove themselves, bounded so that strangers crowd out strangers.
//!
//! IO-11 (fair-bound): where there are too many, the oldest of the origin that has most goes. So one that comes
//! from elsewhere stays, however many one origin opens.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::time::Instant;

struct Waiting<A, T> {
    from: A,
    until: Instant,
    connection: T,
}

/// Connections of one listener, oldest first. Each has the same time to prove itself.
///
/// ```
/// use std::time::{Duration, Instant};
/// use phalanx_io::Unproved;
///
/// let (mut unproved, soon) = (Unproved::new(2), Instant::now() + Duration::from_secs(5));
/// assert_eq!(unproved.add("10.0.0.1", soon, "one"), None);
/// assert_eq!(unproved.add("10.0.0.2", soon, "two"), None);
/// assert_eq!(unproved.add("10.0.0.2", soon, "three"), Some("two"));
/// ```
pub struct Unproved<A, T> {
    most: usize,
    waiting: VecDeque<Waiting<A, T>>,
}

impl<A: Eq + Hash + Copy, T> Unproved<A, T> {
    /// At most so many at a time.
    pub fn new(most: usize) -> Unproved<A, T> {
        Unproved { most, waiting: VecDeque::new() }
    }

    /// Adds one that came from there and may take until then; the one that has to go for it.
    pub fn add(&mut self, from: A, until: Instant, connection: T) -> Option<T> {
        self.waiting.push_back(Waiting { from, until, connection });
        if self.waiting.len() <= self.most {
            return None;
        }
        let mut counts: HashMap<A, usize> = HashMap::new();
        for waiting in &self.waiting {
            *counts.entry(waiting.from).or_default() += 1;
        }
        let most = counts.values().max()?;
        let goes = self.waiting.iter().position(|waiting| counts.get(&waiting.from) == Some(most))?;
        self.waiting.remove(goes).map(|waiting| waiting.connection)
    }

    /// When the next one's time is over.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|waiting| waiting.until)
    }

    /// Takes out one whose time is over.
    pub fn expired(&mut self, now: Instant) -> Option<T> {
        if self.due()? > now {
            return None;
        }
        self.waiting.pop_front().map(|waiting| waiting.connection)
    }

    /// Keeps those that `stays` says.
    pub fn retain(&mut self, mut stays: impl FnMut(&mut T) -> bool) {
        self.waiting.retain_mut(|waiting| stays(&mut waiting.connection));
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|waiting| &waiting.connection)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_crowd_from_one_place_crowds_out_nobody_else() {
        let now = Instant::now();
        let mut unproved = Unproved::new(4);
        assert_eq!(unproved.add("rank", now, 0), None);
        for stranger in 1..100 {
            let gone = unproved.add("crowd", now, stranger);
            assert_eq!(gone, (stranger > 3).then(|| stranger - 3), "IO-11");
        }
        assert_eq!(unproved.add("other rank", now, 100), Some(97), "IO-11");
        assert_eq!(unproved.iter().copied().collect::<Vec<_>>(), [0, 98, 99, 100]);
    }

    #[test]
    fn who_is_late_goes_and_who_has_proved_itself_stays() {
        let now = Instant::now();
        let mut unproved = Unproved::new(4);
        for (late, id) in [(0, 1), (1, 2), (2, 3)] {
            unproved.add("here", now + Duration::from_secs(late), id);
        }
        unproved.retain(|id| *id != 2);
        assert_eq!((unproved.expired(now), unproved.expired(now)), (Some(1), None));
        assert_eq!(unproved.due(), Some(now + Duration::from_secs(2)));
    }
}
