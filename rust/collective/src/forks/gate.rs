//! The gate between those who open and close descriptors and those who fork: it lets in one of the two sides at a time.
//!
//! - GROUP-33 (one-side): the two sides are never inside together. Of one side, any number is.
//! - GROUP-34 (in-turn): whoever comes is let in before all who come later. So no side keeps the other out, however
//!   many come.
//! - GROUP-35 (no-lost-wake): whoever waits for something that has happened is woken, or doesn't fall asleep.
//! - GROUP-36 (anew): a gate that is reset is as new, whoever was inside, came or waited.
//!
//! `tests/gate_model.rs` runs this file under loom.

use crate::sync::{AtomicU32, AtomicU64, Ordering, sleep_while, wake_all};

/// A gate, of two words that are zeros at first.
pub(crate) struct Gate {
    state: AtomicU64,
    /// Changes whenever someone who waits may have to look again.
    bell: AtomicU32,
}

/// What someone is at the gate for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// Descriptors come and go.
    Opening,
    /// The process forks.
    Forking,
}

/// What the word says. Numbers begin again at 0 after the largest: fewer wait at a time than there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// The number that the next who comes gets.
    next: u16,
    /// The number of who is let in next.
    due: u16,
    /// How many are inside, of each side.
    inside: [u16; 2],
}

impl State {
    /// Somebody comes.
    fn come(self) -> State {
        State { next: self.next.wrapping_add(1), ..self }
    }

    /// Who has this number goes in, if it is due and none of the other side is inside.
    fn enter(self, number: u16, side: Side) -> Option<State> {
        (self.due == number && self.inside[1 - side as usize] == 0).then(|| {
            let mut inside = self.inside;
            inside[side as usize] += 1;
            State { due: number.wrapping_add(1), inside, ..self }
        })
    }

    /// One who was inside goes.
    fn leave(mut self, side: Side) -> State {
        self.inside[side as usize] -= 1;
        self
    }

    fn is_awaited(self) -> bool {
        self.next != self.due
    }

    fn from_bits(bits: u64) -> State {
        let field = |at: u32| (bits >> (16 * at)) as u16;
        State { next: field(0), due: field(1), inside: [field(2), field(3)] }
    }

    fn bits(self) -> u64 {
        let fields = [self.next, self.due, self.inside[0], self.inside[1]];
        fields.into_iter().rev().fold(0, |bits, field| bits << 16 | u64::from(field))
    }
}

impl Gate {
    pub(crate) const fn new(state: AtomicU64, bell: AtomicU32) -> Gate {
        Gate { state, bell }
    }

    /// Goes in; waits until it is its turn, and nobody of the other side is inside. A thread that is inside must not
    /// come again.
    pub(crate) fn enter(&self, side: Side) {
        let (Ok(before) | Err(before)) = self.change(|state| Some(state.come()));
        let number = before.next;
        let entered = loop {
            // Before the state: whatever changes that later also rings (GROUP-35).
            let rung = self.bell.load(Ordering::Acquire);
            match self.change(|state| state.enter(number, side)) {
                Ok(before) => break before.enter(number, side),
                Err(_) => sleep_while(&self.bell, rung),
            }
        };
        // The next may be of the same side.
        if entered.is_some_and(State::is_awaited) {
            self.ring();
        }
    }

    /// Goes, who was inside.
    pub(crate) fn leave(&self, side: Side) {
        let (Ok(before) | Err(before)) = self.change(|state| Some(state.leave(side)));
        if before.inside[side as usize] == 1 && before.is_awaited() {
            self.ring();
        }
    }

    /// GROUP-36, for a process in which no other thread uses it: a child that was forked inside.
    pub(crate) fn reset(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// The state before it was changed, or the one in which there is nothing to change.
    fn change(&self, change: impl Fn(State) -> Option<State>) -> Result<State, State> {
        let changed = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |bits| {
            change(State::from_bits(bits)).map(State::bits)
        });
        changed.map(State::from_bits).map_err(State::from_bits)
    }

    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::Release);
        wake_all(&self.bell);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Who is where, as plain lists tell it.
    #[derive(Debug, Default)]
    struct Story {
        waiting: std::collections::VecDeque<(u16, Side)>,
        inside: Vec<Side>,
    }

    fn step() -> impl Strategy<Value = (u8, bool)> {
        (0..4u8, any::<bool>())
    }

    proptest! {
        #[test]
        fn all_are_let_in_in_the_order_in_which_they_came_and_never_both_sides_at_once(
            first in any::<u16>(),
            steps in proptest::collection::vec(step(), 0..200),
        ) {
            let mut state = State { next: first, due: first, inside: [0; 2] };
            let mut story = Story::default();
            for (what, is_fork) in steps {
                let side = if is_fork { Side::Forking } else { Side::Opening };
                match what {
                    0 => {
                        story.waiting.push_back((state.next, side));
                        state = state.come();
                    }
                    1 => if let Some(at) = story.inside.iter().position(|one| *one == side) {
                        story.inside.swap_remove(at);
                        state = state.leave(side);
                    }
                    _ => {
                        for (at, (number, side)) in story.waiting.iter().enumerate() {
                            let may = at == 0 && story.inside.iter().all(|one| one == side);
                            prop_assert_eq!(state.enter(*number, *side).is_some(), may, "GROUP-33, GROUP-34");
                        }
                        if let Some((number, side)) = story.waiting.front().copied()
                            && let Some(entered) = state.enter(number, side)
                        {
                            state = entered;
                            story.waiting.pop_front();
                            story.inside.push(side);
                        }
                    }
                }
                prop_assert_eq!(State::from_bits(state.bits()), state);
                prop_assert_eq!(state.is_awaited(), !story.waiting.is_empty());
                prop_assert!(state.inside.contains(&0), "GROUP-33");
            }
            // Once all who are inside have gone, all who wait are let in.
            for side in story.inside.drain(..) {
                state = state.leave(side);
            }
            for (number, side) in story.waiting {
                let entered = state.enter(number, side);
                prop_assert!(entered.is_some(), "GROUP-34: {state:?}");
                state = entered.unwrap().leave(side);
            }
            prop_assert_eq!((state.is_awaited(), state.inside), (false, [0; 2]));
        }
    }
}
