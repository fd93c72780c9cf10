//! The flag protocol under loom: GROUP-26, GROUP-27 and GROUP-28, over every interleaving that the memory model allows.
#![allow(clippy::unwrap_used, reason = "for tests")]

/// loom's stand-ins for what `src/flag.rs` uses.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

/// As much of a call as the flag knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call([u64; CALL_WORDS]);
const CALL_WORDS: usize = 3;

impl Call {
    fn words(self) -> [u64; CALL_WORDS] {
        self.0
    }
    fn from_words(words: [u64; CALL_WORDS]) -> Call {
        Call(words)
    }
}

#[path = "../src/flag.rs"]
#[allow(dead_code, reason = "the model needs less than the crate")]
mod flag;

use std::sync::Arc as StdArc;

use flag::Flag;
use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering;
use loom::sync::{Arc, Condvar, Mutex};

/// What two ranks share.
struct Shared {
    flags: [Flag; 2],
    /// Two slots a rank, used in turn. loom fails the test if one is written while the other rank reads it.
    slots: [[UnsafeCell<u32>; 2]; 2],
    /// The kernel's side of a futex, one a flag.
    beds: [(Mutex<()>, Condvar); 2],
}

impl Shared {
    fn new() -> Shared {
        let slots = || [UnsafeCell::new(0), UnsafeCell::new(0)];
        let bed = || (Mutex::new(()), Condvar::new());
        Shared { flags: [Flag::new(), Flag::new()], slots: [slots(), slots()], beds: [bed(), bed()] }
    }

    fn publish(&self, rank: usize, step: u32) {
        if self.flags[rank].publish(step) {
            let _guard = self.beds[rank].0.lock().unwrap();
            self.beds[rank].1.notify_all();
        }
    }

    fn sleep(&self, rank: usize, step: u32) {
        while !self.flags[rank].reached(step) {
            self.flags[rank].sleep_unless(
                |value| value.wrapping_sub(step) as i32 >= 0,
                |word, value| {
                    let guard = self.beds[rank].0.lock().unwrap();
                    // As the kernel does: compares under its lock, then sleeps.
                    if word.load(Ordering::Relaxed) == value {
                        drop(self.beds[rank].1.wait(guard).unwrap());
                    }
                },
            );
        }
    }

    /// What a rank does in each step: write its slot, publish, wait for the other, read its slot.
    fn steps(&self, rank: usize, steps: u32, wait: impl Fn(&Shared, usize, u32)) {
        let other = 1 - rank;
        for step in 1..=steps {
            // SAFETY: loom checks exactly this claim: nobody reads the slot now.
            self.slots[rank][(step & 1) as usize].with_mut(|slot| unsafe { *slot = step * 10 + rank as u32 });
            self.flags[rank].announce(step, Call([u64::from(step), 0, 0]));
            self.publish(rank, step);
            wait(self, other, step);
            assert_eq!(self.flags[other].call(step), Call([u64::from(step), 0, 0]), "GROUP-26");
            // SAFETY: loom checks exactly this claim: nobody writes the slot now.
            let seen = self.slots[other][(step & 1) as usize].with(|slot| unsafe { *slot });
            assert_eq!(seen, step * 10 + other as u32, "GROUP-26");
        }
    }
}

fn spin(shared: &Shared, rank: usize, step: u32) {
    while !shared.flags[rank].reached(step) {
        loom::thread::yield_now();
    }
}

fn model(preemptions: Option<usize>, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let run = StdArc::new(run);
    builder.check(move || run());
}

/// What two ranks do, each on a thread of its own.
fn beside(one: fn(&Shared), two: fn(&Shared)) {
    let shared = Arc::new(Shared::new());
    let other = Arc::clone(&shared);
    let thread = loom::thread::spawn(move || one(&other));
    two(&shared);
    thread.join().unwrap();
}

#[test]
fn what_was_written_before_a_step_is_seen_after_it_and_slots_are_never_in_two_hands() {
    // GROUP-26, GROUP-28: three steps, so that the first slot is used again.
    model(Some(3), || {
        beside(|shared| shared.steps(1, 3, spin), |shared| shared.steps(0, 3, spin));
    });
}

#[test]
fn no_wake_up_is_lost() {
    // GROUP-27: loom reports a deadlock if a sleeper is never woken.
    model(Some(3), || {
        beside(|shared| shared.sleep(0, 1), |shared| shared.publish(0, 1));
    });
}

#[test]
fn two_ranks_that_sleep_for_each_other_both_go_on() {
    model(Some(2), || {
        beside(|shared| shared.steps(1, 2, Shared::sleep), |shared| shared.steps(0, 2, Shared::sleep));
    });
}
