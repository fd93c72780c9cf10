//! The host's monotonic clock as a number that is the same in all processes of a host: `CLOCK_MONOTONIC`, the clock of
//! [`Instant`] and of Python's `time.monotonic`.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Now, on the host's monotonic clock.
#[allow(clippy::disallowed_methods, reason = "this is what others call instead")]
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// [`monotonic`] in microseconds.
pub fn monotonic_us() -> u64 {
    u64::try_from(monotonic().as_micros()).unwrap_or(u64::MAX)
}

/// [`monotonic`] in nanoseconds.
pub fn monotonic_ns() -> u64 {
    u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// The instant that another process read as `at` from [`monotonic`]; now, for one that is still to come.
pub fn instant_of(at: Duration) -> Instant {
    let now = Instant::now();
    now.checked_sub(monotonic().saturating_sub(at)).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_comes_back_as_the_instant_it_was_read_at() {
        let (before, at, after) = (Instant::now(), monotonic(), Instant::now());
        let slack = Duration::from_millis(50);
        assert!(instant_of(at) + slack >= before && instant_of(at) <= after + slack);
        assert!(instant_of(at + Duration::from_secs(60)) <= Instant::now());
    }

    #[test]
    fn the_units_tell_the_same_time() {
        let (us, ns, later) = (monotonic_us(), monotonic_ns(), monotonic_us());
        assert!(us <= ns / 1000 && ns / 1000 <= later);
    }
}
