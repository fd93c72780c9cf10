//! A counter that one rank raises and others wait for, without a system call while both run.
//!
//! - GROUP-26 (publishes): a rank that saw a step also sees what was written before that step was published.
//! - GROUP-27 (no-lost-wake): no wake-up is lost: a rank that falls asleep for a step that is being published is woken,
//!   or doesn't sleep.
//! - GROUP-28 (slot-safety): of two or more slots used in turn, none is written while another rank may still read it.
//!
//! `tests/flag_model.rs` runs this file under loom, over all interleavings of two ranks.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use super::{CALL_WORDS, Call};

/// In shared memory: a rank's step, and beside it, in the same line of the cache, the call that the step belongs to.
///
/// A rank publishes step s + 1 only after it has seen that every other rank published s; so nobody is ever more than
/// one step ahead, and two places for calls (and two slots for data) are enough.
#[repr(C, align(64))]
pub(crate) struct Flag {
    step: AtomicU32,
    sleepers: AtomicU32,
    calls: [[AtomicU64; CALL_WORDS]; 2],
}

impl Flag {
    /// A flag that isn't in shared memory: for the model.
    #[allow(dead_code, reason = "flags in shared memory start as zeros")]
    pub(crate) fn new() -> Flag {
        let call = || [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)];
        Flag { step: AtomicU32::new(0), sleepers: AtomicU32::new(0), calls: [call(), call()] }
    }

    /// Says which call the step to be published next belongs to.
    pub(crate) fn announce(&self, step: u32, call: Call) {
        for (cell, word) in self.calls[(step & 1) as usize].iter().zip(call.words()) {
            cell.store(word, Ordering::Relaxed);
        }
    }

    /// The call that a published step belongs to; only its first step has one.
    pub(crate) fn call(&self, step: u32) -> Call {
        Call::from_words(self.calls[(step & 1) as usize].each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// Publishes a step; whether someone sleeps, who is to be woken then.
    #[must_use]
    pub(crate) fn publish(&self, step: u32) -> bool {
        self.step.store(step, Ordering::Release);
        self.must_wake()
    }

    /// The same for a counter that several raise; only that it changes matters.
    #[must_use]
    pub(crate) fn ring(&self) -> bool {
        self.step.fetch_add(1, Ordering::Release);
        self.must_wake()
    }

    fn must_wake(&self) -> bool {
        // GROUP-27: either this sees the sleeper's count, or the sleeper sees the step. Both have a fence in between.
        fence(Ordering::SeqCst);
        self.sleepers.load(Ordering::Relaxed) != 0
    }

    /// Whether `step` was published. Steps wrap around.
    #[inline]
    pub(crate) fn reached(&self, step: u32) -> bool {
        self.value().wrapping_sub(step) as i32 >= 0
    }

    /// The step published last.
    #[inline]
    pub(crate) fn value(&self) -> u32 {
        self.step.load(Ordering::Acquire)
    }

    /// Calls `sleep(word, value)`, which must return at once if the word isn't `value`, and after a wake-up; unless
    /// `is_so` already for the value that would be slept on.
    pub(crate) fn sleep_unless(&self, is_so: impl Fn(u32) -> bool, sleep: impl FnOnce(&AtomicU32, u32)) {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let value = self.value();
        if !is_so(value) {
            sleep(&self.step, value);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// What sleepers sleep on.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.step
    }
}
