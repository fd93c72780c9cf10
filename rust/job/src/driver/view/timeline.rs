//! The points of a job's life as phases without a gap: pure, points in, spans out.
//!
//! - DRIVER-40 (no-gap): a phase begins where the one before ends, and no time goes back.
//! - DRIVER-41 (any-name): what rank 0 tells is a phase, whatever it is called.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::time::Duration;

use phalanx_types::Attempt;
use phalanx_types::contract::{PHASE_RAISED, PHASE_READY, PHASE_USER_CODE};
use phalanx_types::run_snapshot::{MAX_PHASES, Span, SpanKind};

use crate::driver::state::{Phase, Point};

/// What a job does for a time.
#[derive(Debug, PartialEq, Eq)]
enum Stretch {
    /// Tasks join.
    Waiting,
    /// Ranks start, and get ready.
    Starting,
    /// All ranks are in the training code.
    Training,
    /// What rank 0 calls so.
    Told(String),
    /// This attempt waits for its tasks, after a failure.
    Restart(Attempt),
    /// The ranks are being ended.
    Ending,
}

impl Stretch {
    fn name(&self) -> Cow<'_, str> {
        match self {
            Stretch::Waiting => "waiting for tasks".into(),
            Stretch::Starting => "starting ranks".into(),
            Stretch::Training => "training".into(),
            Stretch::Told(name) => name.into(),
            Stretch::Restart(attempt) => format!("restart {attempt}").into(),
            Stretch::Ending => "ending the ranks".into(),
        }
    }

    fn kind(&self) -> SpanKind {
        match self {
            Stretch::Restart(_) => SpanKind::Restart,
            _ => SpanKind::Phase,
        }
    }
}

/// The phases so far.
#[derive(Debug)]
pub(super) struct Timeline {
    ranks: u32,
    /// How many ranks of this attempt are in the training code.
    in_user_code: u32,
    /// Phases and beginnings; the last is the present one.
    begun: VecDeque<(Stretch, Duration)>,
    over: Option<Duration>,
}

impl Timeline {
    /// The beginning of a job of so many ranks.
    pub(super) fn new(ranks: u32) -> Timeline {
        Timeline { ranks, in_user_code: 0, begun: [(Stretch::Waiting, Duration::ZERO)].into(), over: None }
    }

    /// Takes a point.
    pub(super) fn point(&mut self, phase: &Phase) {
        match &phase.point {
            Point::AllJoined(ranks) => {
                self.ranks = *ranks;
                self.begin(Stretch::Starting, phase.at);
            }
            Point::Restart(attempt) => {
                self.in_user_code = 0;
                self.begin(Stretch::Restart(*attempt), phase.at);
            }
            Point::RankPhase(_, name) if name == PHASE_USER_CODE => {
                self.in_user_code += 1;
                if self.in_user_code == self.ranks {
                    self.trains(phase.at);
                }
            }
            Point::RankPhase(0, name)
                if self.over.is_none() && ![PHASE_READY, PHASE_RAISED].contains(&name.as_str()) =>
            {
                self.begin(Stretch::Told(name.clone()), phase.at);
            }
            Point::FirstJoin
            | Point::AllEnded
            | Point::RankStarted(_)
            | Point::RankPhase(..)
            | Point::RankEnded(_) => {}
        }
    }

    /// All ranks are in the training code.
    pub(super) fn trains(&mut self, at: Duration) {
        if self.is_at(&Stretch::Starting) {
            self.begin(Stretch::Training, at);
        }
    }

    /// The ranks are being ended.
    pub(super) fn stops(&mut self, at: Duration) {
        if !self.is_at(&Stretch::Ending) {
            self.begin(Stretch::Ending, at);
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
        let span = |((stretch, start), end): (&(Stretch, Duration), Option<Duration>)| Span {
            kind: stretch.kind(),
            name: stretch.name().into_owned(),
            start: time(*start),
            end: end.map(|end| time(end.max(*start))),
        };
        self.begun.iter().zip(ends).map(span).collect()
    }

    fn is_at(&self, stretch: &Stretch) -> bool {
        self.begun.back().is_some_and(|(present, _)| present == stretch)
    }

    fn begin(&mut self, stretch: Stretch, at: Duration) {
        let at = self.begun.back().map_or(at, |(_, before)| at.max(*before));
        if self.begun.len() == MAX_PHASES {
            self.begun.pop_front();
        }
        self.begun.push_back((stretch, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(point: Point, seconds: u64) -> Phase {
        Phase { point, at: Duration::from_secs(seconds) }
    }

    fn shown(timeline: &Timeline) -> Vec<(String, f64, Option<f64>)> {
        timeline.spans(100.0).into_iter().map(|span| (span.name, span.start, span.end)).collect()
    }

    #[test]
    fn the_points_of_a_job_are_phases_without_a_gap() {
        let mut timeline = Timeline::new(2);
        let told = |rank, name: &str| Point::RankPhase(rank, name.into());
        for (point, at) in [
            (Point::FirstJoin, 1),
            (Point::AllJoined(2), 2),
            (Point::RankStarted(0), 3),
            (told(1, "user code"), 4),
            (told(0, "user code"), 5),
            (told(1, "validation"), 6),
            (told(0, "validation"), 4),
            (Point::RankEnded(0), 8),
            (Point::Restart(Attempt::new(1)), 9),
            (Point::AllJoined(2), 10),
        ] {
            timeline.point(&phase(point, at));
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
        assert_eq!(shown(&timeline), expected, "DRIVER-40");
        let restarts = timeline.spans(0.0).into_iter().filter(|span| span.kind == SpanKind::Restart);
        assert_eq!(restarts.map(|span| span.name).collect::<Vec<_>>(), ["restart 1"], "DRIVER-41");
    }

    #[test]
    fn of_very_many_phases_the_newest_are_kept() {
        let mut timeline = Timeline::new(1);
        for i in 0..5000 {
            timeline.point(&phase(Point::RankPhase(0, format!("epoch {i}")), i));
        }
        let shown = shown(&timeline);
        assert_eq!(shown.len(), MAX_PHASES, "TYPES-24");
        assert_eq!(shown[MAX_PHASES - 1], ("epoch 4999".into(), 5099.0, None));
    }
}
