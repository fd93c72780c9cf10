//! Freezing under loom: GUARD-3, over every interleaving that the memory model allows.
#![allow(clippy::unwrap_used, reason = "for tests")]

/// loom's stand-ins for what `src/freeze.rs` uses.
mod sync {
    use std::cell::Cell;

    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};

    thread_local! {
        /// At which ends fences count, the node's and the rank's. A model is all in the thread of its test.
        pub(crate) static FENCED: Cell<[bool; 2]> = const { Cell::new([true; 2]) };
    }

    loom::thread_local! {
        /// Whether this is the rank, in a model.
        pub(crate) static IS_RANK: Cell<bool> = Cell::new(false);
    }

    pub(crate) fn fence(order: Ordering) {
        if FENCED.get()[usize::from(IS_RANK.with(Cell::get))] {
            loom::sync::atomic::fence(order);
        }
    }
}

#[path = "../src/freeze.rs"]
mod freeze;

use std::panic::catch_unwind;

use freeze::{ask, freeze, go_on, tell, thaw};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

#[derive(Default)]
struct Words {
    asked: AtomicU64,
    frozen: AtomicU64,
}

impl Words {
    /// The last of two steps that the rank begins.
    fn steps(&self) -> u64 {
        sync::IS_RANK.with(|is_rank| is_rank.set(true));
        (1..=2).take_while(|step| ask(&self.asked, &self.frozen, *step)).last().unwrap_or(0)
    }
}

/// A rank begins steps and a node freezes it, with fences at these ends.
fn a_step_that_was_begun_is_known(fenced: [bool; 2]) {
    sync::FENCED.set(fenced);
    loom::model(|| {
        let words = Arc::new(Words::default());
        let of_rank = Arc::clone(&words);
        let rank = loom::thread::spawn(move || of_rank.steps());
        let known = freeze(&words.asked, &words.frozen);
        let begun = rank.join().unwrap();
        assert!(begun <= known, "GUARD-3: {begun} was begun, and {known} is known");
    });
}

#[test]
fn a_rank_and_who_freezes_it_are_never_both_let_on() {
    a_step_that_was_begun_is_known([true, true]);
}

#[test]
fn without_a_fence_at_both_ends_they_could_both_go_on() {
    for fenced in [[true, false], [false, true], [false, false]] {
        let both = catch_unwind(|| a_step_that_was_begun_is_known(fenced)).unwrap_err();
        let said = both.downcast_ref::<String>().unwrap();
        assert!(said.starts_with("GUARD-3"), "the model can't see what the fence is for: {said}");
    }
}

/// A rank begins a step though it is frozen, and its node tells it something, with fences at these ends.
fn a_rank_is_told_or_known_to_be_late(fenced: [bool; 2]) {
    sync::FENCED.set(fenced);
    loom::model(|| {
        let (told, late) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let of_rank = (Arc::clone(&told), Arc::clone(&late));
        let rank = loom::thread::spawn(move || {
            sync::IS_RANK.with(|is_rank| is_rank.set(true));
            go_on(&of_rank.1, &of_rank.0, 7)
        });
        let known = tell(&told, &late, 9);
        let found = rank.join().unwrap();
        assert!(found == 9 || known == 7, "GUARD-22: it found {found}, and {known} is known");
    });
}

#[test]
fn a_rank_that_did_not_wait_finds_what_it_is_told_or_is_known() {
    a_rank_is_told_or_known_to_be_late([true, true]);
    for fenced in [[true, false], [false, true], [false, false]] {
        let neither = catch_unwind(|| a_rank_is_told_or_known_to_be_late(fenced)).unwrap_err();
        let said = neither.downcast_ref::<String>().unwrap();
        assert!(said.starts_with("GUARD-22"), "the model can't see what the fence is for: {said}");
    }
}

#[test]
fn a_rank_that_is_thawed_begins_the_next_step_that_it_asks_for() {
    loom::model(|| {
        let words = Arc::new(Words::default());
        freeze(&words.asked, &words.frozen);
        assert!(!ask(&words.asked, &words.frozen, 1));
        let of_node = Arc::clone(&words);
        let node = loom::thread::spawn(move || thaw(&of_node.frozen));
        while !ask(&words.asked, &words.frozen, 1) {
            loom::thread::yield_now();
        }
        node.join().unwrap();
    });
}
