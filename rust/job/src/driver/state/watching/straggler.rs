//! Ranks that are slower than the others: a pure decision over what the running ranks told.
//!
//! DRIVER-33 (named-once): a slow rank is named once. A rank is slow if its steps take [`SLOW_FACTOR`] times the
//! median's, for [`SLOW_FOR`] without a break. The median is the lower one, so of two ranks it is the faster one's.
//! DRIVER-34 (once-a-second): the ranks are compared once a second at most, however many tell however often.
//! DRIVER-35 (folded): of more than [`MOST_LINES`] that are found at once, one line names all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_types::message::RankActivity;
use phalanx_types::stacks::ranges;

/// How many times the median's time a slow rank takes for a step.
const SLOW_FACTOR: u64 = 2;
/// For how long, until it is named.
const SLOW_FOR: Duration = Duration::from_secs(30);
/// How many ranks found at once have a line each.
const MOST_LINES: usize = 8;
/// How often the ranks are compared.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was found of the ranks' pace, in one attempt.
#[derive(Debug, Default)]
pub(in crate::driver::state) struct Stragglers {
    slow_since: BTreeMap<u32, Instant>,
    named: BTreeSet<u32>,
    /// When they are to be compared: not before, and only if one has told something since.
    look_at: Option<Instant>,
    looked_at: Option<Instant>,
}

/// A rank that is slow.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::driver::state) struct Slow {
    pub(in crate::driver::state) rank: u32,
    step_us: u64,
    median_us: u64,
}

impl Slow {
    /// The line that names it.
    fn describe(&self, host: &str) -> String {
        format!(
            "[phalanx] rank {} ({host}) is slow: {:.2} s a step, the median of the ranks is {:.2} s",
            self.rank,
            seconds(self.step_us),
            seconds(self.median_us)
        )
    }
}

/// The lines that name them. All were found at once.
pub(in crate::driver::state) fn describe(found: &[Slow], host_of: impl Fn(u32) -> String) -> Vec<String> {
    let times = || found.iter().map(|slow| slow.step_us);
    let (Some(least), Some(most)) = (times().min(), times().max()) else { return Vec::new() };
    if found.len() <= MOST_LINES {
        return found.iter().map(|slow| slow.describe(&host_of(slow.rank))).collect();
    }
    let ranks: Vec<u32> = found.iter().map(|slow| slow.rank).collect();
    let hosts: BTreeSet<String> = ranks.iter().map(|rank| host_of(*rank)).collect();
    vec![format!(
        "[phalanx] {} on {} are slow: {:.2} to {:.2} s a step, the median of the ranks is {:.2} s",
        ranges(&ranks),
        if hosts.len() == 1 { "1 host".to_owned() } else { format!("{} hosts", hosts.len()) },
        seconds(least),
        seconds(most),
        seconds(found[0].median_us)
    )]
}

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

impl Stragglers {
    /// A rank has told something.
    pub(in crate::driver::state) fn told(&mut self, now: Instant) {
        let earliest = self.looked_at.map_or(now, |at| now.max(at + LOOK_EVERY));
        self.look_at.get_or_insert(earliest);
    }

    /// Those that were named, and still are slow.
    pub(in crate::driver::state) fn slow(&self) -> impl Iterator<Item = u32> {
        self.named.iter().copied().filter(|rank| self.slow_since.contains_key(rank))
    }

    /// When [`Stragglers::look`] is due, if it is.
    pub(in crate::driver::state) fn due(&self) -> Option<Instant> {
        self.look_at
    }

    /// Looks at what the running ranks told last; those that are to be named now.
    pub(in crate::driver::state) fn look<'a>(
        &mut self,
        now: Instant,
        running: impl Iterator<Item = &'a RankActivity>,
    ) -> Vec<Slow> {
        (self.look_at, self.looked_at) = (None, Some(now));
        let times: BTreeMap<u32, u64> = running.filter_map(|told| Some((told.rank, told.step_us?))).collect();
        let mut sorted: Vec<u64> = times.values().copied().collect();
        sorted.sort_unstable();
        let Some(median_us) = sorted.get(sorted.len().saturating_sub(1) / 2).copied() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (rank, step_us) in times {
            if step_us < median_us.saturating_mul(SLOW_FACTOR) || step_us == median_us {
                self.slow_since.remove(&rank);
                continue;
            }
            let since = *self.slow_since.entry(rank).or_insert(now);
            if now >= since + SLOW_FOR && self.named.insert(rank) {
                found.push(Slow { rank, step_us, median_us });
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_the_ranks_tell_they_are_compared_once_a_second() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let (mut stragglers, mut looks) = (Stragglers::default(), Vec::new());
        for ms in 0..5000 {
            stragglers.told(at(ms));
            if stragglers.due().is_some_and(|due| due <= at(ms)) {
                stragglers.look(at(ms), [].iter());
                looks.push(ms);
            }
        }
        assert_eq!(looks, [0, 1000, 2000, 3000, 4000], "DRIVER-34");
        assert_eq!(stragglers.due(), Some(at(5000)), "DRIVER-34: what was told last is looked at, too");
        stragglers.look(at(5000), [].iter());
        assert_eq!(stragglers.due(), None, "DRIVER-34: nothing new was told");
    }
}
