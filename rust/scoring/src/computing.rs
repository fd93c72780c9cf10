//! How long the model takes for a batch, where the next one is begun before it is done.
//!
//! SCORE-26 (ahead): on a GPU the next batch is begun while one is computed, so that its copy goes ahead and the GPU
//! has no time without work. What is told of a batch is the time that it adds: from its begin, or from the end of the
//! one before, whichever is later.

use std::time::{Duration, Instant};

/// The batches that are begun and not done; they end in their order.
#[derive(Debug)]
pub(crate) struct Computing {
    count: u32,
    since: Instant,
}

impl Computing {
    pub(crate) fn new(now: Instant) -> Computing {
        Computing { count: 0, since: now }
    }

    pub(crate) fn is_any(&self) -> bool {
        self.count > 0
    }

    pub(crate) fn begin(&mut self, now: Instant) {
        if self.count == 0 {
            self.since = now;
        }
        self.count += 1;
    }

    /// How long the oldest took, which is done now.
    pub(crate) fn end(&mut self, now: Instant) -> Duration {
        self.count = self.count.saturating_sub(1);
        now.duration_since(std::mem::replace(&mut self.since, now))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_batch_that_is_begun_ahead_takes_the_time_that_it_adds() {
        let began = Instant::now();
        let at = |millis| began + Duration::from_millis(millis);
        let mut computing = Computing::new(began);
        computing.begin(at(10));
        computing.begin(at(12));
        assert_eq!(computing.end(at(50)), Duration::from_millis(40));
        assert_eq!(computing.end(at(90)), Duration::from_millis(40), "SCORE-26");
        assert!(!computing.is_any());
        computing.begin(at(200));
        assert_eq!(computing.end(at(203)), Duration::from_millis(3));
    }

    proptest! {
        /// However batches overlap, their times are those in which any of them was computed.
        #[test]
        fn times_add_up(steps in proptest::collection::vec((any::<bool>(), 0_u64..50), 1..60)) {
            let mut now = Instant::now();
            let mut computing = Computing::new(now);
            let (mut told, mut busy) = (Duration::ZERO, Duration::ZERO);
            for (is_begin, millis) in steps {
                let passed = Duration::from_millis(millis);
                now += passed;
                if computing.is_any() {
                    busy += passed;
                }
                if is_begin {
                    computing.begin(now);
                } else if computing.is_any() {
                    told += computing.end(now);
                }
            }
            while computing.is_any() {
                told += computing.end(now);
            }
            prop_assert_eq!(told, busy);
        }
    }
}
