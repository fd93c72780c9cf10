//! The loss by step, as a curve of few points however long a run is: pure, reports in, points out.
//!
//! - DRIVER-36 (one-rank): the curve is that of one rank, the lowest that tells a loss, so that it doesn't jump between
//!   ranks.
//! - DRIVER-37 (folded): when the curve is full, neighbours become their mean, so that it spans the whole run.

use phalanx_types::run_snapshot::MAX_LOSSES;
use serde_json::{Map, Value};

/// How training code calls its loss; the first that is there counts.
const NAMES: [&str; 3] = ["loss", "train_loss", "training_loss"];

/// The curve so far.
#[derive(Debug, Default)]
pub(super) struct Losses {
    rank: Option<u32>,
    /// How many reports a point is made of.
    folded: u32,
    points: Vec<(u64, f64)>,
    /// What the next point will be made of: the newest step, the sum, how many.
    next: (u64, f64, u32),
}

impl Losses {
    /// Takes a report; `values` is a JSON object, which is only read if it can be of the rank whose curve it is.
    pub(super) fn take(&mut self, rank: u32, step: u64, values: &str) {
        if self.rank.is_some_and(|other| rank > other) {
            return;
        }
        let values: Map<String, Value> = serde_json::from_str(values).unwrap_or_default();
        let Some(loss) = NAMES.iter().find_map(|name| values.get(*name)).and_then(Value::as_f64) else {
            return;
        };
        if self.rank != Some(rank) {
            *self = Losses { rank: Some(rank), folded: 1, ..Losses::default() };
        }
        // After a restart the steps since the checkpoint come again.
        if self.points.last().is_some_and(|(last, _)| step <= *last) {
            self.points.retain(|(before, _)| *before < step);
            self.next = (0, 0.0, 0);
        }
        let (_, sum, count) = self.next;
        self.next = (step, sum + loss, count + 1);
        if self.next.2 >= self.folded {
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
            self.folded = self.folded.saturating_mul(2);
        }
    }

    /// The curve, with what was told last at its end.
    pub(super) fn points(&self) -> Vec<(u64, f64)> {
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
        let points = losses.points();
        assert!(points.len() <= MAX_LOSSES && points.len() >= MAX_LOSSES / 2, "DRIVER-37: {}", points.len());
        assert!(points[0].0 < 2000 && points.last().unwrap().0 == 99_999, "DRIVER-37");
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "DRIVER-37");
    }

    #[test]
    fn the_curve_is_the_first_ranks_and_begins_again_with_the_steps_of_a_restart() {
        let mut losses = Losses::default();
        told(&mut losses, 3, 1, 9.0);
        told(&mut losses, 1, 1, 5.0);
        told(&mut losses, 3, 2, 8.0);
        told(&mut losses, 1, 2, 4.0);
        assert_eq!(losses.points(), [(1, 5.0), (2, 4.0)], "DRIVER-36");
        told(&mut losses, 1, 2, 4.5);
        assert_eq!(losses.points(), [(1, 5.0), (2, 4.5)], "DRIVER-36");
        for values in ["", "[]", r#"{"loss": "nan"}"#, r#"{"accuracy": 1}"#] {
            losses.take(1, 3, values);
        }
        assert_eq!(losses.points().len(), 2, "what is no number is no point");
    }
}
