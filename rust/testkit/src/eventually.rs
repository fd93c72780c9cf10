//! Waiting by polling a condition until a deadline. Tests do this instead of sleeping.

use std::time::{Duration, Instant};

use phalanx_types::Deadline;

/// The first pauses are short, for what is nearly there; the later ones don't load the machine.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// Waits until `is_so`; panics with `what` if it isn't `within` that time.
#[track_caller]
pub fn eventually(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    eventually_some(what, within, || is_so().then_some(()));
}

/// Waits until `look` finds something, and returns it; panics with `what` if it doesn't `within` that time.
#[track_caller]
pub fn eventually_some<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let (start, deadline) = (Instant::now(), Deadline::after(within));
    let mut pause = Duration::from_micros(200);
    loop {
        // Once more after the deadline: the machine may have been busy with something else.
        let last = deadline.passed();
        if let Some(found) = look() {
            return found;
        }
        assert!(!last, "after {:.1} s still not: {what}", start.elapsed().as_secs_f64());
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_late_is_found() {
        let mut looks = 0;
        let found = eventually_some("the third look", Duration::from_secs(10), || {
            looks += 1;
            (looks == 3).then_some("found")
        });
        assert_eq!((found, looks), ("found", 3));
    }

    #[test]
    #[should_panic(expected = "still not: a miracle")]
    fn what_does_not_come_fails_with_its_name() {
        eventually("a miracle", Duration::from_millis(5), || false);
    }
}
