//! The points of a job's life as phases without a gap: pure, points in, spans out.
//!
//! - TIMELINE-1 (no-gap): a phase begins where the one before ends, and no time goes back.

use std::collections::VecDeque;
use std::time::Duration;

use phalanx_types::contract::{PHASE_RAISED, PHASE_READY, PHASE_USER_CODE};
use phalanx_types::run_snapshot::{MAX_PHASES, Span};

use crate::driver::state::Phase;

const WAITING: &str = "waiting for tasks";
const STARTING: &str = "starting ranks";
const TRAINING: &str = "training";
const ENDING: &str = "ending the ranks";

/// The phases so far.
#[derive(Debug)]
pub(super) struct Timeline {
    ranks: u32,
    /// How many ranks of this attempt are in the training code.
    in_user_code: u32,
    /// Names and beginnings; the last is the present one.
    begun: VecDeque<(String, Duration)>,
    over: Option<Duration>,
}

impl Timeline {
    /// The beginning of a job of so many ranks.
    pub(super) fn new(ranks: u32) -> Timeline {
        Timeline { ranks, in_user_code: 0, begun: [(WAITING.into(), Duration::ZERO)].into(), over: None }
    }

    /// Takes a point.
    pub(super) fn point(&mut self, point: &Phase) {
        match (point.rank, point.name.as_str()) {
            (None, "all joined") => self.begin(STARTING, point.at),
            (None, name) if name.starts_with("restart ") => {
                self.in_user_code = 0;
                self.begin(name, point.at);
            }
            (Some(_), PHASE_USER_CODE) => {
                self.in_user_code += 1;
                if self.in_user_code == self.ranks {
                    self.trains(point.at);
                }
            }
            (None, "hub open" | "first join" | "all ranks ended")
            | (Some(_), "rank started" | "rank ended" | PHASE_READY | PHASE_RAISED) => {}
            (Some(0), name) if self.over.is_none() => self.begin(name, point.at),
            _ => {}
        }
    }

    /// All ranks are in the training code.
    pub(super) fn trains(&mut self, at: Duration) {
        if self.present() == STARTING {
            self.begin(TRAINING, at);
        }
    }

    /// The ranks are being ended.
    pub(super) fn stops(&mut self, at: Duration) {
        if self.present() != ENDING {
            self.begin(ENDING, at);
        }
    }

    /// The job is over.
    pub(super) fn ends(&mut self, at: Duration) {
        self.over.get_or_insert(at);
    }

    /// When it was over.
    pub(super) fn over(&self) -> Option<Duration> {
        self.over
    }

    /// The phases, for a hub that opened at this moment.
    pub(super) fn spans(&self, opened: f64) -> Vec<Span> {
        let ends = self.begun.iter().skip(1).map(|(_, at)| Some(*at)).chain([self.over]);
        let time = |at: Duration| opened + at.as_secs_f64();
        let span = |((name, start), end): (&(String, Duration), Option<Duration>)| Span {
            name: name.clone(),
            start: time(*start),
            end: end.map(|end| time(end.max(*start))),
        };
        self.begun.iter().zip(ends).map(span).collect()
    }

    fn present(&self) -> &str {
        self.begun.back().map_or("", |(name, _)| name)
    }

    fn begin(&mut self, name: &str, at: Duration) {
        let at = self.begun.back().map_or(at, |(_, before)| at.max(*before));
        if self.begun.len() == MAX_PHASES {
            self.begun.pop_front();
        }
        self.begun.push_back((name.into(), at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str, rank: Option<u32>, seconds: u64) -> Phase {
        Phase { name: name.into(), rank, at: Duration::from_secs(seconds) }
    }

    fn told(timeline: &Timeline) -> Vec<(String, f64, Option<f64>)> {
        timeline.spans(100.0).into_iter().map(|span| (span.name, span.start, span.end)).collect()
    }

    #[test]
    fn the_points_of_a_job_are_phases_without_a_gap() {
        let mut timeline = Timeline::new(2);
        for (name, rank, at) in [
            ("first join", None, 1),
            ("all joined", None, 2),
            ("rank started", Some(0), 3),
            ("user code", Some(1), 4),
            ("user code", Some(0), 5),
            ("validation", Some(1), 6),
            ("validation", Some(0), 4),
            ("rank ended", Some(0), 8),
            ("restart 1", None, 9),
            ("all joined", None, 10),
        ] {
            timeline.point(&point(name, rank, at));
        }
        timeline.stops(Duration::from_secs(12));
        timeline.stops(Duration::from_secs(13));
        timeline.ends(Duration::from_secs(14));
        timeline.ends(Duration::from_secs(15));
        let expected = [
            ("waiting for tasks", 100.0, 102.0),
            ("starting ranks", 102.0, 105.0),
            ("training", 105.0, 105.0),
            ("validation", 105.0, 109.0),
            ("restart 1", 109.0, 110.0),
            ("starting ranks", 110.0, 112.0),
            ("ending the ranks", 112.0, 114.0),
        ];
        let expected = expected.map(|(name, start, end)| (name.to_string(), start, Some(end)));
        assert_eq!(told(&timeline), expected, "TIMELINE-1");
    }

    #[test]
    fn of_very_many_phases_the_newest_are_kept() {
        let mut timeline = Timeline::new(1);
        for i in 0..5000 {
            timeline.point(&point(&format!("epoch {i}"), Some(0), i));
        }
        let told = told(&timeline);
        assert_eq!(told.len(), MAX_PHASES, "SNAP-1");
        assert_eq!(told[MAX_PHASES - 1], ("epoch 4999".into(), 5099.0, None));
    }
}
