//! Waking and sleeping: on a [`Flag`] that several processes map, the kernel's side of GROUP-27; and on a word of this
//! process, that of GROUP-35.

use std::sync::atomic::AtomicU32;

use rustix::event::Timespec;
use rustix::thread::futex;

use crate::flag::Flag;

// Not private: the sleepers are other processes. Errors can't happen for a mapped, aligned word.
const SHARED: futex::Flags = futex::Flags::empty();

/// Wakes all who sleep on a flag.
pub(crate) fn wake(flag: &Flag) {
    let _ = futex::wake(flag.word(), SHARED, i32::MAX as u32);
}

/// Sleeps until the flag is woken, for at most `nap`, unless `is_so` of its value.
pub(crate) fn sleep_unless(flag: &Flag, is_so: impl Fn(u32) -> bool, nap: &Timespec) {
    flag.sleep_unless(is_so, |word, value| {
        // Woken, changed already, timed out or interrupted: the caller looks which.
        let _ = futex::wait(word, SHARED, value, Some(nap));
    });
}

/// Wakes all who sleep on a word of this process.
pub(crate) fn wake_all(word: &AtomicU32) {
    let _ = futex::wake(word, futex::Flags::PRIVATE, i32::MAX as u32);
}

/// Sleeps until the word is woken, unless it has another value by then. May wake sooner.
pub(crate) fn sleep_while(word: &AtomicU32, value: u32) {
    let _ = futex::wait(word, futex::Flags::PRIVATE, value, None);
}
