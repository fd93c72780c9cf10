//! How many of the model's batches a task gives its process at once.
//!
//! SCORE-25 (several-at-once): a task with a fast model and small rows gives several batches at once, and its process
//! gives them to the model one by one. They are never more than the model is expected to compute in 10 ms, than 1 MB
//! has room for, or than 16; and where one is more than that by itself, it goes alone.
//!
//! Why: to give a batch and to take its outputs costs both processes time, however little is in it.

use std::time::Duration;

/// How long the model is to take for what is given at once.
const TARGET: Duration = Duration::from_millis(10);
/// How many bytes of inputs are given at once.
const MOST_BYTES: u128 = 1 << 20;
/// How many batches are given at once.
const MOST_BATCHES: u128 = 16;

#[derive(Debug, Clone)]
pub(crate) struct Pace {
    batch_size: u64,
    batches: u128,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace { batch_size: 1, batches: 1 }
    }

    /// How many rows to give next to a model that is given so many in a batch: those of whole batches.
    pub(crate) fn rows(&mut self, batch_size: u64) -> u64 {
        self.batch_size = batch_size.max(1);
        self.batch_size.saturating_mul(u64::try_from(self.batches).unwrap_or(1))
    }

    /// Learns from rows, the bytes of their inputs, and how long the model took for them. Less than a batch says
    /// little: most of its time is not the model's.
    pub(crate) fn learn(&mut self, rows: u64, bytes: u64, took: Duration) {
        if rows < self.batch_size {
            return;
        }
        let of_all = |most: u128, all: u128| {
            most.saturating_mul(rows.into()) / all.max(1) / u128::from(self.batch_size)
        };
        let by_time = of_all(TARGET.as_micros(), took.as_micros());
        let by_bytes = of_all(MOST_BYTES, bytes.into());
        self.batches = by_time.min(by_bytes).min(2 * self.batches).clamp(1, MOST_BATCHES);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The pace after so many answers of a model that takes this long for a row of so many bytes.
    fn after(answers: u32, batch_size: u64, bytes: u64, row: Duration) -> Pace {
        let mut pace = Pace::new();
        for _ in 0..answers {
            let rows = pace.rows(batch_size);
            pace.learn(rows, rows * bytes, row * u32::try_from(rows).unwrap());
        }
        pace
    }

    #[test]
    fn a_fast_model_of_small_rows_gets_several_batches_soon() {
        let quick = Duration::from_nanos(300);
        assert_eq!(after(0, 1024, 60, quick).rows(1024), 1024);
        assert_eq!(after(1, 1024, 60, quick).rows(1024), 2 * 1024);
        assert_eq!(after(4, 1024, 60, quick).rows(1024), 16 * 1024);
        assert_eq!(after(9, 1024, 60, quick).rows(1024), 16 * 1024, "SCORE-25");
    }

    #[test]
    fn a_model_that_takes_its_time_gets_one_batch() {
        assert_eq!(after(9, 16, 60, Duration::from_millis(100)).rows(16), 16);
        assert_eq!(after(9, 1024, 3136, Duration::from_nanos(1)).rows(1024), 1024, "3 MB");
    }

    #[test]
    fn a_model_that_becomes_slow_gets_fewer_with_the_next_answer() {
        let mut pace = after(9, 1024, 60, Duration::from_nanos(300));
        let rows = pace.rows(1024);
        pace.learn(rows, 1, Duration::from_secs(1));
        assert_eq!(pace.rows(1024), 1024);
    }

    #[test]
    fn what_is_less_than_a_batch_teaches_nothing() {
        let mut pace = after(9, 1024, 60, Duration::from_nanos(300));
        pace.learn(10, 600, Duration::from_millis(5));
        assert_eq!(pace.rows(1024), 16 * 1024);
    }

    proptest! {
        #[test]
        fn never_more_than_the_time_and_the_memory_allow(
            batch_size in 0_u64..=u64::MAX,
            answers in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u32>()), 0..20),
        ) {
            let mut pace = Pace::new();
            let one = batch_size.max(1);
            prop_assert_eq!(pace.rows(batch_size), one);
            for (rows, bytes, micros) in answers {
                pace.learn(rows, bytes, Duration::from_micros(micros.into()));
                let next = pace.rows(batch_size);
                prop_assert!(next >= one);
                prop_assert!(next == u64::MAX || next.is_multiple_of(one));
                prop_assert!(u128::from(next) <= 16 * u128::from(one));
                if rows >= one && next > one && next < u64::MAX {
                    let scaled = |all: u128| all * u128::from(next);
                    prop_assert!(scaled(micros.into()) <= 10_000 * u128::from(rows), "SCORE-25");
                    prop_assert!(scaled(bytes.into()) <= (1 << 20) * u128::from(rows), "SCORE-25");
                }
            }
        }
    }
}
