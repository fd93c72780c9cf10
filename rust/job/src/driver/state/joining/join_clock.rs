//! How long tasks may take to join: the clock for it runs once Spark has started them, not while they wait for slots.
//!
//! - DRIVER-42 (queue-is-no-fault): while looks at Spark show that the stage's tasks wait, and that slots enough exist,
//!   the clock for joining stands. It starts when a look shows that tasks run, or when the first one joins, and then
//!   runs to its end, whatever later looks show. Where nobody looks it runs from the attempt's beginning. It also
//!   stands while a gang of tasks waits for another to gather, and so is not submitted.
//! - DRIVER-43 (looks-expire): a look counts for [`LOOK_LASTS`]. If no other follows, the clock runs from then on. So
//!   an observer that is gone leaves no run that waits for ever.
//! - DRIVER-44 (queue-has-a-limit): a stage that has been submitted waits for slots for `queueTimeout` at most, if that
//!   is set.

use std::time::{Duration, Instant};

use phalanx_types::Gang;

/// How long a look at Spark counts. It comes once a second, and may be late where the driver is busy.
const LOOK_LASTS: Duration = Duration::from_secs(30);

/// What a look at Spark shows of the stage that was submitted for an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageLook {
    /// How many of its tasks run; `None` if it isn't submitted yet: Spark may compute earlier stages of a DataFrame.
    pub running: Option<u32>,
    /// How many task slots the registered executors have.
    pub slots: u32,
    /// How many of these are free.
    pub free: u32,
}

/// A stage that waits for slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Queued {
    since: Instant,
    free: u32,
}

/// Why joining is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::driver::state) enum TooLate {
    /// Tasks had the time to join.
    Joining,
    /// No slots came; how many were free at last.
    Queued { free: u32 },
}

/// The clock of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::driver::state) struct JoinClock {
    /// From when on it runs. That is to come while looks say that the stage waits; each moves it.
    runs_from: Instant,
    /// Whether a task runs or has joined, so that nothing moves it any more.
    has_started: bool,
    queued: Option<Queued>,
}

impl JoinClock {
    /// That of an attempt which begins now.
    pub(in crate::driver::state) fn new(now: Instant) -> JoinClock {
        JoinClock { runs_from: now, has_started: false, queued: None }
    }

    /// Somebody has looked at Spark. DRIVER-42
    pub(in crate::driver::state) fn look(&mut self, now: Instant, tasks: u32, gang: Gang, look: StageLook) {
        if self.has_started {
            return;
        }
        if look.running.is_some_and(|running| running > 0) {
            return self.start(now);
        }
        let exist = look.slots >= tasks;
        let has_no_turn = gang == Gang::Tasks && look.running.is_none();
        // Too few slots: that is not others' doing, and today's wait for executors goes on.
        self.runs_from = if exist || has_no_turn { now + LOOK_LASTS } else { self.runs_from.min(now) };
        self.queued = look
            .running
            .filter(|_| exist)
            .map(|_| Queued { since: self.queued.map_or(now, |queued| queued.since), free: look.free });
    }

    /// A task has joined. A clock that runs goes on.
    pub(in crate::driver::state) fn joined(&mut self, now: Instant) {
        if !self.has_started {
            self.start(self.runs_from.min(now));
        }
    }

    fn start(&mut self, at: Instant) {
        *self = JoinClock { runs_from: at, has_started: true, queued: None };
    }

    /// From when on it runs, as far as is known.
    pub(in crate::driver::state) fn runs_from(&self) -> Instant {
        self.runs_from
    }

    /// How many slots are free, while these are too few for the stage.
    pub(in crate::driver::state) fn free(&self, tasks: u32) -> Option<u32> {
        self.queued.map(|queued| queued.free).filter(|free| *free < tasks)
    }

    /// When joining is over, and why it is then. `queue_timeout` is zero for none.
    pub(in crate::driver::state) fn due(
        &self,
        join_timeout: Duration,
        queue_timeout: Duration,
    ) -> (Instant, TooLate) {
        let joining = (self.runs_from + join_timeout, TooLate::Joining);
        let queue = self.queued.filter(|_| !queue_timeout.is_zero());
        let queue = queue.map(|Queued { since, free }| (since + queue_timeout, TooLate::Queued { free }));
        queue.filter(|(at, _)| *at < joining.0).unwrap_or(joining)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TASKS: u32 = 4;
    const JOIN: Duration = Duration::from_secs(120);
    const QUEUE: Duration = Duration::from_secs(300);

    #[derive(Debug, Clone)]
    enum Event {
        Look(StageLook),
        Joined,
    }

    fn look(running: Option<u32>, slots: u32, free: u32) -> StageLook {
        StageLook { running, slots, free }
    }

    /// Mostly a queue, and every other thing now and then.
    fn event() -> impl Strategy<Value = Event> {
        let waits = (0..=TASKS + 4).prop_map(|free| Event::Look(look(Some(0), TASKS + 4, free)));
        prop_oneof![
            8 => waits,
            2 => Just(Event::Look(look(None, TASKS, TASKS))),
            2 => Just(Event::Look(look(Some(0), TASKS - 1, 1))),
            1 => Just(Event::Look(look(Some(TASKS), TASKS, 0))),
            1 => Just(Event::Joined),
        ]
    }

    /// What the rules say of a history: times in seconds, in order.
    fn due_by_the_rules(history: &[(u64, Event)], gang: Gang, queue: Duration) -> (u64, bool) {
        let (join, lasts) = (JOIN.as_secs(), LOOK_LASTS.as_secs());
        // From when on the clock runs, as long as nothing has started it.
        let (mut runs_from, mut queued) = (0, None);
        for (at, event) in history {
            match event {
                Event::Joined => return (runs_from.min(*at) + join, false),
                Event::Look(StageLook { running: Some(1..), .. }) => return (at + join, false),
                Event::Look(StageLook { running: None, .. }) if gang == Gang::Tasks => {
                    (runs_from, queued) = (at + lasts, None);
                }
                Event::Look(look) if look.slots < TASKS => (runs_from, queued) = (runs_from.min(*at), None),
                Event::Look(look) => {
                    runs_from = at + lasts;
                    queued = look.running.map(|_| queued.unwrap_or(*at));
                }
            }
        }
        match queued.map(|since| since + queue.as_secs()) {
            Some(at) if !queue.is_zero() && at < runs_from + join => (at, true),
            _ => (runs_from + join, false),
        }
    }

    proptest! {
        #[test]
        fn the_clock_for_joining_stands_exactly_while_the_stage_is_seen_to_wait(
            events in proptest::collection::vec((0..60_u64, event()), 0..40),
            has_limit in any::<bool>(),
            gang in prop_oneof![Just(Gang::Barrier), Just(Gang::Tasks)],
        ) {
            let began = Instant::now();
            let queue = if has_limit { QUEUE } else { Duration::ZERO };
            let (mut clock, mut at, mut history) = (JoinClock::new(began), 0, Vec::new());
            for (pause, event) in events {
                at += pause;
                let now = began + Duration::from_secs(at);
                match &event {
                    Event::Look(look) => clock.look(now, TASKS, gang, *look),
                    Event::Joined => clock.joined(now),
                }
                history.push((at, event));
                let (due, why) = clock.due(JOIN, queue);
                let told = ((due - began).as_secs(), matches!(why, TooLate::Queued { .. }));
                prop_assert_eq!(told, due_by_the_rules(&history, gang, queue), "DRIVER-42, DRIVER-43, DRIVER-44");
            }
        }
    }

    #[test]
    fn the_free_slots_are_told_while_they_are_too_few() {
        let now = Instant::now();
        let mut clock = JoinClock::new(now);
        for (seen, told) in [
            (look(None, TASKS, 2), None),
            (look(Some(0), TASKS, 2), Some(2)),
            (look(Some(0), TASKS, TASKS), None),
            (look(Some(0), TASKS - 1, 1), None),
            (look(Some(0), TASKS, 3), Some(3)),
            (look(Some(TASKS), TASKS, 0), None),
            (look(Some(0), TASKS, 2), None),
        ] {
            clock.look(now, TASKS, Gang::Barrier, seen);
            assert_eq!(clock.free(TASKS), told, "{seen:?}");
        }
    }
}
