//! When the guard sends SIGTERM, when SIGKILL, and when it is done: a pure function of time and of what is left.

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
pub(crate) enum GuardState {
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

impl GuardState {
    /// Everything is to end, with `grace`; changes nothing if that has begun.
    pub(crate) fn stop(&mut self, now: Instant, grace: Duration) {
        if *self == GuardState::Serving {
            // A grace beyond the clock's end is a very long one.
            let kill_at = now.checked_add(grace).unwrap_or(now + Duration::from_secs(1 << 30));
            *self = GuardState::Asking { kill_at };
        }
    }

    /// Everything is to end at once.
    pub(crate) fn kill(&mut self, now: Instant) {
        if !matches!(self, GuardState::Killing { .. }) {
            *self = GuardState::Killing { give_up_at: now + PATIENCE };
        }
    }

    /// What to do at `now`, if `any_left` says whether the guard has children.
    pub(crate) fn step(&mut self, now: Instant, any_left: bool) -> Step {
        match *self {
            GuardState::Serving => Step::Serve,
            _ if !any_left => Step::Empty,
            GuardState::Asking { kill_at } if now < kill_at => Step::Ask,
            GuardState::Asking { .. } => {
                self.kill(now);
                Step::Kill
            }
            GuardState::Killing { give_up_at } if now < give_up_at => Step::Kill,
            GuardState::Killing { .. } => Step::GiveUp,
        }
    }

    /// How long the guard may wait for something to happen; `None` for as long as it takes.
    pub(crate) fn patience(&self, now: Instant) -> Option<Duration> {
        match *self {
            GuardState::Serving => None,
            GuardState::Asking { kill_at } => {
                Some(kill_at.saturating_duration_since(now).min(LOOK_WHILE_ASKING))
            }
            GuardState::Killing { .. } => Some(LOOK_WHILE_KILLING),
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
        let mut state = GuardState::Serving;
        assert_eq!(state.step(start, true), Step::Serve);
        state.stop(start, GRACE);
        state.stop(start + GRACE / 2, GRACE);
        assert_eq!(state.step(start + GRACE - Duration::from_millis(1), true), Step::Ask);
        assert_eq!(state.step(start + GRACE, true), Step::Kill, "a second stop does not lengthen the grace");
        assert_eq!(state.step(start + GRACE + PATIENCE - Duration::from_millis(1), true), Step::Kill);
        assert_eq!(state.step(start + GRACE + PATIENCE, true), Step::GiveUp);
    }

    #[test]
    fn nothing_left_is_empty_in_every_state_but_serving() {
        let now = Instant::now();
        let mut state = GuardState::Serving;
        assert_eq!(state.step(now, false), Step::Serve, "ranks may still come");
        state.stop(now, Duration::MAX);
        assert_eq!(state.step(now, false), Step::Empty);
        state.kill(now);
        assert_eq!(state.step(now, false), Step::Empty);
    }

    #[test]
    fn a_kill_cuts_the_grace_and_a_later_stop_does_not_give_it_back() {
        let now = Instant::now();
        let mut state = GuardState::Serving;
        state.stop(now, GRACE);
        state.kill(now);
        state.stop(now, GRACE);
        assert_eq!(state.step(now, true), Step::Kill);
    }
}
