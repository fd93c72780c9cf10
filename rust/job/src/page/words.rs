//! What a snapshot says in words: how far a run is, how long it takes, who is slow.

use super::numbers::{duration, number, steps};
use super::told::Told;

/// A rank is marked as slow if it takes so many steps in the time in which the median rank takes one.
const SLOW_SHARE: f64 = 0.8;

/// How far the ranks are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Progress {
    /// The furthest rank's.
    pub(super) step: u64,
    pub(super) of: Option<u64>,
    /// Steps in a second, of the median rank.
    rate: Option<f64>,
    /// Seconds, if it goes on like this.
    left: Option<f64>,
}

impl Progress {
    /// `None` where no rank has told.
    pub(super) fn of(told: &Told) -> Option<Progress> {
        let furthest = told.ranks.iter().filter(|rank| rank.step.is_some()).max_by_key(|rank| rank.step)?;
        let (step, of) = (furthest.step?, furthest.of);
        let rate = median(told.ranks.iter().filter(|rank| rank.step.is_some()).filter_map(|rank| rank.rate));
        let to_go = of.and_then(|of| of.checked_sub(step)).filter(|steps| *steps > 0 && told.goes_on());
        #[allow(clippy::cast_precision_loss, reason = "for people")]
        let left = to_go.zip(rate).map(|(steps, rate)| steps as f64 / rate);
        Some(Progress { step, of, rate, left })
    }

    /// What is done of all steps, 0 to 1.
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub(super) fn share(&self) -> Option<f64> {
        self.of.filter(|of| *of > 0).map(|of| (self.step as f64 / of as f64).min(1.0))
    }

    /// `step 120 of 400, 3.2 steps/s, 1 min 28 s left`.
    pub(super) fn in_words(&self) -> String {
        let rate = self.rate.map(|rate| format!(", {} steps/s", number(rate))).unwrap_or_default();
        let left = self.left.map(|left| format!(", {} left", duration(left))).unwrap_or_default();
        format!("step {}{rate}{left}", steps(self.step, self.of))
    }
}

impl Told {
    /// Whether its ranks go on, or will: in a state of a later version, or of a run that was cut, they don't.
    pub(super) fn goes_on(&self) -> bool {
        ["", "waiting", "running", "restarting"].contains(&self.state.as_str()) && self.ended.is_none()
    }

    /// Where it is.
    pub(super) fn present(&self) -> &str {
        match self.phases.last() {
            Some(_) if self.goes_on() && !self.waits_for.is_empty() => &self.waits_for,
            Some(phase) if self.goes_on() => &phase.name,
            _ if self.state.is_empty() => "starting",
            _ => &self.state,
        }
    }

    /// For how many seconds it lasts, or lasted.
    pub(super) fn seconds(&self) -> f64 {
        (self.ended.unwrap_or(self.time) - self.started).max(0.0)
    }

    /// The slow ranks: those that the run named, and the slowest if it is much behind the others.
    pub(super) fn slow_ranks(&self) -> Vec<u32> {
        let rates = || {
            let running = self.ranks.iter().filter(|rank| rank.state == "running");
            running.filter_map(|rank| Some((rank.rank?, rank.rate.filter(|rate| *rate > 0.0)?)))
        };
        let slowest = rates().min_by(|(_, a), (_, b)| a.total_cmp(b)).filter(|_| rates().count() > 1);
        let median = median(rates().map(|(_, rate)| rate));
        let slowest = slowest.zip(median).filter(|((_, rate), median)| *rate < SLOW_SHARE * median);
        let mut slow = self.slow.clone();
        slow.extend(slowest.map(|((rank, _), _)| rank));
        slow.sort_unstable();
        slow.dedup();
        slow
    }
}

/// Of the numbers above 0.
fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = numbers.filter(|number| *number > 0.0).collect();
    all.sort_unstable_by(f64::total_cmp);
    let upper = *all.get(all.len() / 2)?;
    Some(if all.len().is_multiple_of(2) { f64::midpoint(all[all.len() / 2 - 1], upper) } else { upper })
}
