//! What is said of the connections that one listener refuses.
//!
//! IO-7 (told-seldom): strangers can't fill a log. People are told of one refusal in 10 s, and then how many there
//! were in between; those are for who debugs.

use std::fmt::Display;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(10);

/// The refusals of one listener.
#[derive(Debug, Default)]
pub struct Refusals {
    told: Option<Instant>,
    /// How many there were since then.
    untold: u64,
}

impl Refusals {
    /// Logs a refusal at `now`, which `text` says in a sentence without a full stop.
    pub fn log(&mut self, now: Instant, text: impl Display) {
        match self.due(now) {
            None => log::debug!("{text}"),
            Some(0) => log::warn!("{text}"),
            Some(untold) => log::warn!("{text} ({untold} more since the last such line)"),
        }
    }

    /// How many were not told, if it is time to tell one.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.told.is_some_and(|told| now < told + EVERY) {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_refusal_in_ten_seconds_is_told_and_the_others_are_counted() {
        let (mut refusals, begin) = (Refusals::default(), Instant::now());
        let told = (0..25_000).filter_map(|ms| refusals.due(begin + Duration::from_millis(ms)));
        assert_eq!(told.collect::<Vec<_>>(), [0, 9_999, 9_999], "IO-7");
    }
}
