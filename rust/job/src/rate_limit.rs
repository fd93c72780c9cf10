//! How many different lines of very many ranks are shown: pure, lines and time in, what to show out.
//!
//! - JOB-19 (bounded): of more than [`MANY_RANKS`] ranks, at most [`MOST_LINES`] lines that rank 0 has not written are
//!   shown in [`WINDOW`]. A line that several wrote counts once.
//! - JOB-20 (told): how many others there were is told once a window, and before the end.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Up to so many ranks all lines are shown.
const MANY_RANKS: u32 = 64;
/// How many lines are shown in a window.
const MOST_LINES: usize = 250;
/// How long one counts.
const WINDOW: Duration = Duration::from_secs(10);

/// What has been shown in this window, and what not.
#[derive(Debug, Default)]
pub(crate) struct RateLimit {
    shown: usize,
    left_out: u64,
    /// The ranks that wrote those.
    of_ranks: BTreeSet<u32>,
    /// All ranks of which lines were left out since the job began.
    ever: BTreeSet<u32>,
    /// Unknown until time is told.
    ends: Option<Instant>,
}

impl RateLimit {
    /// For so many ranks; none where all lines are shown.
    pub(crate) fn of(ranks: u32) -> Option<RateLimit> {
        (ranks > MANY_RANKS).then(RateLimit::default)
    }

    /// Whether a line of these ranks, ascending, is shown.
    pub(crate) fn shows(&mut self, ranks: &[u32]) -> bool {
        if ranks.first() == Some(&0) {
            return true;
        }
        if self.shown < MOST_LINES {
            self.shown += 1;
            return true;
        }
        self.left_out += 1;
        self.of_ranks.extend(ranks);
        self.ever.extend(ranks);
        false
    }

    /// Whether lines of this rank were ever left out.
    pub(crate) fn has_left_out(&self, rank: u32) -> bool {
        self.ever.contains(&rank)
    }

    /// Time has come to `now`: what is told at the end of a window, and when that is.
    pub(crate) fn tick(&mut self, now: Instant) -> (Option<String>, Option<Instant>) {
        if self.shown == 0 && self.left_out == 0 {
            return (None, None);
        }
        let ends = *self.ends.get_or_insert(now + WINDOW);
        if now < ends {
            return (None, Some(ends));
        }
        (self.shown, self.ends) = (0, None);
        (self.told(), None)
    }

    /// What there is to tell.
    pub(crate) fn told(&mut self) -> Option<String> {
        let (lines, ranks) = (std::mem::take(&mut self.left_out), std::mem::take(&mut self.of_ranks).len());
        (lines > 0).then(|| {
            format!(
                "[phalanx] {lines} more lines of {ranks} ranks are not shown; run.logs(rank) has them, \
                 and with logs=\"all\" all are shown"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_64_ranks_all_lines_are_shown() {
        assert!(RateLimit::of(MANY_RANKS).is_none() && RateLimit::of(MANY_RANKS + 1).is_some(), "JOB-19");
    }

    #[test]
    fn what_is_too_much_for_a_window_is_told_at_its_end_and_the_next_begins_anew() {
        let (mut limit, now) = (RateLimit::of(8000).unwrap(), Instant::now());
        assert_eq!(limit.tick(now), (None, None));
        let shown = (1..8000).filter(|rank| limit.shows(&[*rank])).count();
        assert_eq!(shown, MOST_LINES, "JOB-19");
        assert!(limit.shows(&[0]) && limit.shows(&[0, 7999]) && !limit.shows(&[1, 2]), "JOB-19");
        assert_eq!(limit.tick(now), (None, Some(now + WINDOW)));
        let (told, next) = limit.tick(now + WINDOW);
        let told = told.unwrap();
        assert!(told.starts_with("[phalanx] 7750 more lines of 7751 ranks are not shown"), "JOB-20: {told}");
        assert_eq!((next, limit.tick(now + WINDOW)), (None, (None, None)));
        assert!(limit.shows(&[1]) && limit.has_left_out(7999) && !limit.has_left_out(3));
        assert_eq!(limit.told(), None, "JOB-20: once");
    }
}
