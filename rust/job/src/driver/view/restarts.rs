//! The restarts of a job: what each was for and has cost, and since when there were how many ranks.

use std::collections::VecDeque;
use std::time::Duration;

use phalanx_types::run_snapshot::{
    MAX_LINE_BYTES, MAX_RESTARTS, MAX_SIZES, Restart, RestartCost, RestartKind,
};
use phalanx_types::text::cut;

use crate::driver::state;
use crate::metric::Metric;

/// What is known of a job's restarts. Times are since its hub opened.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    newest: VecDeque<Begun>,
    sizes: VecDeque<(Duration, u32)>,
    /// How many are over.
    replaced: u64,
    resized: u64,
    preempted: u64,
    lost_steps: u64,
    lost: Duration,
}

/// A restart that has begun.
#[derive(Debug)]
struct Begun {
    at: Duration,
    cause: String,
    kind: RestartKind,
    cost: Option<RestartCost>,
}

impl Restarts {
    /// Another attempt begins.
    pub(super) fn begin(&mut self, at: Duration, restart: &state::Restart) {
        if self.newest.len() == MAX_RESTARTS {
            self.newest.pop_front();
        }
        let cause = cut(&restart.cause, MAX_LINE_BYTES);
        self.newest.push_back(Begun { at, cause, kind: restart.kind, cost: None });
    }

    /// All ranks run again.
    pub(super) fn end(&mut self, restarted: &state::Restarted) {
        if let Some(last) = self.newest.back_mut() {
            last.cost = Some(restarted.cost);
        }
        match restarted.kind {
            RestartKind::Replaced => self.replaced += 1,
            RestartKind::Resized => self.resized += 1,
            RestartKind::Preempted => self.preempted += 1,
        }
        self.lost_steps += restarted.cost.steps.unwrap_or_default();
        self.lost += Duration::try_from_secs_f64(restarted.cost.seconds).unwrap_or_default();
    }

    /// So many ranks have their places.
    pub(super) fn placed(&mut self, at: Duration, ranks: u32) {
        if self.sizes.back().is_some_and(|(_, before)| *before == ranks) {
            return;
        }
        if self.sizes.len() == MAX_SIZES {
            self.sizes.pop_front();
        }
        self.sizes.push_back((at, ranks));
    }

    /// The newest restarts, for a hub that opened at this moment.
    pub(super) fn newest(&self, opened: f64) -> Vec<Restart> {
        let restart = |begun: &Begun| Restart {
            time: opened + begun.at.as_secs_f64(),
            cause: begun.cause.clone(),
            kind: begun.kind,
            cost: begun.cost,
        };
        self.newest.iter().map(restart).collect()
    }

    /// The newest changes of the number of ranks, for a hub that opened at this moment.
    pub(super) fn sizes(&self, opened: f64) -> Vec<(f64, u32)> {
        self.sizes.iter().map(|(at, ranks)| (opened + at.as_secs_f64(), *ranks)).collect()
    }

    /// What is counted of all restarts that are over.
    pub(super) fn counts(&self) -> [(Metric, u64); 5] {
        [
            (Metric::RestartsReplaced, self.replaced),
            (Metric::RestartsResized, self.resized),
            (Metric::RestartsPreempted, self.preempted),
            (Metric::LostSteps, self.lost_steps),
            (Metric::LostTime, u64::try_from(self.lost.as_millis()).unwrap_or(u64::MAX)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use phalanx_types::{Attempt, Generation};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn restart(number: u32, kind: RestartKind) -> (state::Restart, state::Restarted) {
        let attempt = Attempt::new(number);
        let cause = format!("cause {number}");
        let begun = state::Restart {
            attempt,
            generation: Generation::first(),
            kind,
            in_place: true,
            rank: None,
            cause,
            line: String::new(),
        };
        let cost = RestartCost { ranks: 2, seconds: 1.5, steps: Some(3) };
        (begun, state::Restarted { attempt, kind, cost })
    }

    #[test]
    fn what_all_restarts_cost_is_counted_also_of_those_that_are_forgotten() {
        let mut restarts = Restarts::default();
        let many = u32::try_from(MAX_RESTARTS).unwrap() + 2;
        for number in 1..=many {
            let kind = if number == 1 { RestartKind::Resized } else { RestartKind::Replaced };
            let (begun, over) = restart(number, kind);
            restarts.begin(SECOND * number, &begun);
            restarts.end(&over);
        }
        restarts.begin(SECOND * 200, &restart(200, RestartKind::Preempted).0);
        let newest = restarts.newest(10.0);
        assert_eq!((newest.len(), newest[0].cause.as_str(), newest[0].time), (MAX_RESTARTS, "cause 4", 14.0));
        assert_eq!(newest[MAX_RESTARTS - 1].cost, None, "its ranks don't run yet");
        let counts = restarts.counts().map(|(_, count)| count);
        assert_eq!(counts, [u64::from(many) - 1, 1, 0, 3 * u64::from(many), 1500 * u64::from(many)]);
    }

    #[test]
    fn a_size_is_kept_when_it_changes() {
        let mut restarts = Restarts::default();
        for (at, ranks) in [(1, 2), (2, 2), (3, 1), (4, 2)] {
            restarts.placed(SECOND * at, ranks);
        }
        assert_eq!(restarts.sizes(10.0), [(11.0, 2), (13.0, 1), (14.0, 2)]);
        for ranks in 0..500 {
            restarts.placed(SECOND * 9, ranks);
        }
        assert_eq!(restarts.sizes(0.0).len(), MAX_SIZES);
    }
}
