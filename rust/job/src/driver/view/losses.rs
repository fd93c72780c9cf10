//! The losses by step, as curves of few points however long a run is: pure, reports in, points out.
//!
//! - DRIVER-36 (few-ranks): there are curves of the [`MAX_CURVES`] lowest ranks that tell a loss. Where one is shown,
//!   it is the lowest's, so that it doesn't jump between ranks.
//! - DRIVER-37 (merged): when a curve is full, neighbours become their mean, so that it spans the whole run.

use std::collections::BTreeMap;

use phalanx_types::run_snapshot::MAX_LOSSES;
use serde_json::{Map, Value};

/// How many ranks have a curve.
const MAX_CURVES: usize = 16;
/// How training code calls its loss; the first that is there counts.
const NAMES: [&str; 3] = ["loss", "train_loss", "training_loss"];

/// Steps and losses.
pub(in crate::driver) type Points = Vec<(u64, f64)>;

/// The curves so far, by rank.
#[derive(Debug, Default)]
pub(super) struct Losses {
    curves: BTreeMap<u32, Curve>,
}

impl Losses {
    /// Takes a report; `values` is a JSON object, which is only read if the rank can have a curve.
    pub(super) fn take(&mut self, rank: u32, step: u64, values: &str) {
        let is_full = self.curves.len() >= MAX_CURVES && !self.curves.contains_key(&rank);
        if is_full && self.curves.last_key_value().is_some_and(|(highest, _)| rank > *highest) {
            return;
        }
        let values: Map<String, Value> = serde_json::from_str(values).unwrap_or_default();
        let Some(loss) = NAMES.iter().find_map(|name| values.get(*name)).and_then(Value::as_f64) else {
            return;
        };
        if is_full {
            self.curves.pop_last();
        }
        self.curves.entry(rank).or_default().take(step, loss);
    }

    /// The curve of the lowest rank, with what was told last at its end.
    pub(super) fn lowest(&self) -> Points {
        self.curves.first_key_value().map(|(_, curve)| curve.points()).unwrap_or_default()
    }

    /// All curves, by rank.
    pub(super) fn all(&self) -> BTreeMap<u32, Points> {
        self.curves.iter().map(|(rank, curve)| (*rank, curve.points())).collect()
    }
}

#[derive(Debug)]
struct Curve {
    /// How many reports a point is made of.
    merged: u32,
    points: Points,
    /// What the next point will be made of: the newest step, the sum, how many.
    next: (u64, f64, u32),
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { merged: 1, points: Points::new(), next: (0, 0.0, 0) }
    }
}

impl Curve {
    fn take(&mut self, step: u64, loss: f64) {
        // After a restart the steps since the checkpoint come again.
        if self.points.last().is_some_and(|(last, _)| step <= *last) {
            self.points.retain(|(before, _)| *before < step);
            self.next = (0, 0.0, 0);
        }
        let (_, sum, count) = self.next;
        self.next = (step, sum + loss, count + 1);
        if self.next.2 >= self.merged {
            let point = self.pending();
            self.points.extend(point);
            self.next = (0, 0.0, 0);
        }
        if self.points.len() >= MAX_LOSSES {
            let mean = |pair: &[(u64, f64)]| match pair {
                [(_, a), (step, b)] => Some((*step, (a + b) / 2.0)),
                rest => rest.last().copied(),
            };
            self.points = self.points.chunks(2).filter_map(mean).collect();
            self.merged = self.merged.saturating_mul(2);
        }
    }

    fn points(&self) -> Points {
        self.points.iter().copied().chain(self.pending()).collect()
    }

    fn pending(&self) -> Option<(u64, f64)> {
        let (step, sum, count) = self.next;
        (count > 0).then(|| (step, sum / f64::from(count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(losses: &mut Losses, rank: u32, step: u64, loss: f64) {
        losses.take(rank, step, &format!(r#"{{"lr": 1, "loss": {loss}}}"#));
    }

    #[test]
    fn a_curve_of_any_length_has_few_points_over_all_its_steps() {
        let mut losses = Losses::default();
        for step in 0..100_000_u32 {
            told(&mut losses, 0, u64::from(step), f64::from(step));
        }
        let points = losses.lowest();
        assert!(points.len() <= MAX_LOSSES && points.len() >= MAX_LOSSES / 2, "DRIVER-37: {}", points.len());
        assert!(points[0].0 < 2000 && points.last().unwrap().0 == 99_999, "DRIVER-37");
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "DRIVER-37");
    }

    #[test]
    fn the_curve_that_is_shown_is_the_lowest_ranks_and_begins_again_with_the_steps_of_a_restart() {
        let mut losses = Losses::default();
        told(&mut losses, 3, 1, 9.0);
        told(&mut losses, 1, 1, 5.0);
        told(&mut losses, 3, 2, 8.0);
        told(&mut losses, 1, 2, 4.0);
        assert_eq!(losses.lowest(), [(1, 5.0), (2, 4.0)], "DRIVER-36");
        told(&mut losses, 1, 2, 4.5);
        assert_eq!(losses.lowest(), [(1, 5.0), (2, 4.5)], "DRIVER-36");
        for values in ["", "[]", r#"{"loss": "nan"}"#, r#"{"accuracy": 1}"#] {
            losses.take(1, 3, values);
        }
        assert_eq!(losses.lowest().len(), 2, "what is no number is no point");
    }

    #[test]
    fn there_are_curves_of_the_lowest_ranks_that_tell_a_loss() {
        let mut losses = Losses::default();
        for rank in (0..40).rev() {
            told(&mut losses, rank, 1, f64::from(rank));
            losses.take(40 + rank, 1, r#"{"accuracy": 1}"#);
        }
        told(&mut losses, 3, 2, 30.0);
        let curves = losses.all();
        assert!(curves.keys().copied().eq(0..16), "DRIVER-36");
        assert_eq!(curves[&3], [(1, 3.0), (2, 30.0)], "DRIVER-36");
        assert_eq!(curves[&15], [(1, 15.0)], "DRIVER-36");
    }
}
