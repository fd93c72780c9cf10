//! When the guard asks, when it kills, when it is done: a pure function of time and of whether anything is left.

use std::time::{Duration, Instant};

/// How long after the first SIGKILL the guard still waits for a process to go. Killed processes go at once unless the
/// kernel holds them (a hung network file system, a driver), and that can last for ever.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// How often the guard looks for new children while it asks: nothing tells it when a process is re-parented to it.
const LOOK_WHILE_ASKING: Duration = Duration::from_millis(50);

/// Likewise while it kills.
const LOOK_WHILE_KILLING: Duration = Duration::from_millis(10);

/// Where the guard stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It starts and watches ranks.
    Serving,
    /// It asked all to end, and will kill what is left then.
    Asking {
        /// The end of the grace.
        kill_at: Instant,
    },
    /// It kills.
    Killing {
        /// When it no longer believes in success.
        give_up_at: Instant,
    },
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing but to watch.
    Serve,
    /// SIGTERM to each child that hasn't had one, and SIGCONT, so that a stopped one can act on it.
    Ask,
    /// SIGKILL to everything.
    Kill,
    /// Nothing is left: say so and exit.
    Empty,
    /// Something is left that SIGKILL doesn't end: say so and exit.
    GiveUp,
}

impl Phase {
    /// Everything is to end, with `grace`; changes nothing if that has begun.
    pub(crate) fn stop(&mut self, now: Instant, grace: Duration) {
        if *self == Phase::Serving {
            // A grace beyond the clock's end is a very long one.
            let kill_at = now.checked_add(grace).unwrap_or(now + Duration::from_secs(1 << 30));
            *self = Phase::Asking { kill_at };
        }
    }

    /// Everything is to end at once.
    pub(crate) fn kill(&mut self, now: Instant) {
        if !matches!(self, Phase::Killing { .. }) {
            *self = Phase::Killing { give_up_at: now + PATIENCE };
        }
    }

    /// What to do at `now`, if `any_left` says whether the guard has children.
    pub(crate) fn step(&mut self, now: Instant, any_left: bool) -> Step {
        match *self {
            Phase::Serving => Step::Serve,
            _ if !any_left => Step::Empty,
            Phase::Asking { kill_at } if now < kill_at => Step::Ask,
            Phase::Asking { .. } => {
                self.kill(now);
                Step::Kill
            }
            Phase::Killing { give_up_at } if now < give_up_at => Step::Kill,
            Phase::Killing { .. } => Step::GiveUp,
        }
    }

    /// How long the guard may wait for something to happen; `None` for as long as it takes.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        match *self {
            Phase::Serving => None,
            Phase::Asking { kill_at } => Some(kill_at.saturating_duration_since(now).min(LOOK_WHILE_ASKING)),
            Phase::Killing { .. } => Some(LOOK_WHILE_KILLING),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(5);

    #[test]
    fn a_stop_asks_for_the_grace_then_kills_then_gives_up() {
        let start = Instant::now();
        let mut phase = Phase::Serving;
        assert_eq!(phase.step(start, true), Step::Serve);
        phase.stop(start, GRACE);
        phase.stop(start + GRACE / 2, GRACE);
        assert_eq!(phase.step(start + GRACE - Duration::from_millis(1), true), Step::Ask);
        assert_eq!(phase.step(start + GRACE, true), Step::Kill, "a second stop does not lengthen the grace");
        assert_eq!(phase.step(start + GRACE + PATIENCE - Duration::from_millis(1), true), Step::Kill);
        assert_eq!(phase.step(start + GRACE + PATIENCE, true), Step::GiveUp);
    }

    #[test]
    fn nothing_left_is_empty_in_every_phase_but_serving() {
        let now = Instant::now();
        let mut phase = Phase::Serving;
        assert_eq!(phase.step(now, false), Step::Serve, "ranks may still come");
        phase.stop(now, Duration::MAX);
        assert_eq!(phase.step(now, false), Step::Empty);
        phase.kill(now);
        assert_eq!(phase.step(now, false), Step::Empty);
    }

    #[test]
    fn a_kill_cuts_the_grace_and_a_later_stop_does_not_give_it_back() {
        let now = Instant::now();
        let mut phase = Phase::Serving;
        phase.stop(now, GRACE);
        phase.kill(now);
        phase.stop(now, GRACE);
        assert_eq!(phase.step(now, true), Step::Kill);
    }
}
