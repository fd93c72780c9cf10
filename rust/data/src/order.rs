//! The order in which an epoch takes the rows of a data set. All ranks have the same, however many there are.
//!
//! - PLAN-1 (permutes): whatever the blocks and the shuffle, each row has exactly one position.
//! - PLAN-2 (pure): the order follows from index, shuffle, seed and epoch alone.
//! - PLAN-3 (bounded): rows that a window shuffles come from few blocks, so that whoever gathers them needs few at a
//!   time: at most twice [`WINDOW_BLOCKS`], unless blocks are so small that [`WINDOW_ROWS`] need more of them.

use crate::index::{BlockIndex, Place, containing};
use crate::permutation::{Permutation, key_of};

/// A window has at least so many blocks.
pub const WINDOW_BLOCKS: usize = 16;
/// A window has at least so many rows.
pub const WINDOW_ROWS: u64 = 1 << 16;

/// How an epoch's order comes about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shuffle {
    /// Not at all: block after block, row after row.
    No,
    /// The blocks are shuffled and cut into windows, and the rows of each window are shuffled.
    Windows,
    /// All rows are shuffled at once: each may be anywhere.
    Full,
}

/// The order of one epoch.
#[derive(Debug, Clone)]
pub struct EpochOrder {
    /// Shuffled blocks; each is at the place that `starts` has for it.
    blocks: Vec<u32>,
    /// The position before the shuffle of rows at which each of `blocks` begins, and the end.
    starts: Vec<u64>,
    windows: Vec<Permutation>,
    /// The position at which each window begins, and the end.
    window_starts: Vec<u64>,
}

impl EpochOrder {
    /// That of `epoch`.
    pub fn new(index: &BlockIndex, shuffle: Shuffle, seed: u64, epoch: u64) -> EpochOrder {
        let count = index.blocks() as u64;
        let key = |what: u64| key_of(&[seed, epoch, what]);
        let mut blocks: Vec<u32> = (0..count as u32).collect();
        if shuffle == Shuffle::Windows {
            let permutation = Permutation::new(count, key(u64::MAX));
            blocks = (0..count).map(|at| permutation.at(at) as u32).collect();
        }
        let mut starts = vec![0];
        starts.extend(blocks.iter().scan(0, |sum, block| {
            *sum += index.rows_of(*block);
            Some(*sum)
        }));
        let window_starts = match shuffle {
            Shuffle::Windows => windows(&starts),
            Shuffle::No | Shuffle::Full => vec![0, index.rows()],
        };
        let windows = match shuffle {
            Shuffle::No => Vec::new(),
            Shuffle::Windows | Shuffle::Full => (0..)
                .zip(window_starts.windows(2))
                .map(|(number, ends)| Permutation::new(ends[1] - ends[0], key(number)))
                .collect(),
        };
        EpochOrder { blocks, starts, windows, window_starts }
    }

    /// Blocks with rows in the order in which the epoch takes them, from those on that the rows at `position` are
    /// among: those of its window first, in no special order.
    pub fn blocks_from(&self, position: u64) -> impl Iterator<Item = u32> + '_ {
        let from = if self.windows.is_empty() {
            position
        } else {
            self.window_starts[containing(&self.window_starts, position)]
        };
        let first = containing(&self.starts, from);
        let has_rows = |at: &usize| self.starts[at + 1] > self.starts[*at];
        (first..self.blocks.len()).filter(has_rows).map(|at| self.blocks[at])
    }

    /// The row at `position`, which has to be below the number of rows.
    pub fn at(&self, position: u64) -> Place {
        let mut row = position;
        if !self.windows.is_empty() {
            let window = containing(&self.window_starts, position);
            let start = self.window_starts[window];
            row = start + self.windows[window].at(position - start);
        }
        let at = containing(&self.starts, row);
        Place { block: self.blocks[at], row: row - self.starts[at] }
    }
}

/// Cuts shuffled blocks into windows: where each begins, and the end. What is left at the end joins the last one, since
/// by itself it would be shuffled worse.
fn windows(starts: &[u64]) -> Vec<u64> {
    let end = starts.last().copied().unwrap_or(0);
    let mut cuts = vec![0];
    let (mut from, mut blocks) = (0, 0);
    for two in starts.windows(2) {
        blocks += usize::from(two[1] > two[0]);
        if blocks >= WINDOW_BLOCKS && two[1] - from >= WINDOW_ROWS {
            cuts.push(two[1]);
            (from, blocks) = (two[1], 0);
        }
    }
    if cuts.len() > 1 {
        cuts.pop();
    }
    cuts.push(end);
    cuts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shuffles() -> impl Strategy<Value = Shuffle> {
        prop_oneof![Just(Shuffle::No), Just(Shuffle::Windows), Just(Shuffle::Full)]
    }

    /// Up to 1,000 blocks: mostly small and empty ones, and a few that are huge beside them.
    fn blocks() -> impl Strategy<Value = Vec<u64>> {
        let one = prop_oneof![3 => Just(0u64), 10 => 1u64..40, 1 => 10_000u64..30_000];
        prop_oneof![
            prop::collection::vec(one, 0..40),
            prop::collection::vec(prop_oneof![Just(0u64), 1u64..20], 900..1001),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn each_row_has_one_position(blocks in blocks(), shuffle in shuffles(), seed: u64, epoch in 0u64..9) {
            let index = BlockIndex::new(&blocks).unwrap();
            let order = EpochOrder::new(&index, shuffle, seed, epoch);
            let mut seen: Vec<_> = (0..index.rows()).map(|position| order.at(position)).collect();
            let again = EpochOrder::new(&index, shuffle, seed, epoch);
            prop_assert!(seen.iter().zip(0..).all(|(place, at)| *place == again.at(at)), "PLAN-2");
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq((0..index.rows()).map(|row| index.place(row))), "PLAN-1");
        }

        #[test]
        fn a_window_takes_few_blocks(count in 40usize..200, rows in 8_000u64..20_000, seed: u64) {
            let index = BlockIndex::new(&vec![rows; count]).unwrap();
            let order = EpochOrder::new(&index, Shuffle::Windows, seed, 0);
            let cuts = &order.window_starts;
            prop_assert_eq!((cuts[0], cuts[cuts.len() - 1]), (0, index.rows()));
            for ends in cuts.windows(2) {
                let step = ((ends[1] - ends[0]) / 97) as usize;
                let mut blocks: Vec<_> = (ends[0]..ends[1]).step_by(step).map(|at| order.at(at).block).collect();
                blocks.sort_unstable();
                blocks.dedup();
                prop_assert!(blocks.len() <= 2 * WINDOW_BLOCKS, "PLAN-3");
                prop_assert!(ends[1] - ends[0] >= WINDOW_ROWS);
            }
        }
    }

    #[test]
    fn few_blocks_are_one_window_whose_order_is_that_of_a_full_shuffle_in_quality() {
        let index = BlockIndex::new(&[100_000; 16]).unwrap();
        assert_eq!(EpochOrder::new(&index, Shuffle::Windows, 1, 0).window_starts, [0, 1_600_000]);
        // Many small ones, too: a window goes on until it has rows enough.
        let index = BlockIndex::new(&[50; 1000]).unwrap();
        assert_eq!(EpochOrder::new(&index, Shuffle::Windows, 1, 0).window_starts, [0, 50_000]);
        assert_eq!(windows(&[0]), [0, 0]);
    }

    #[test]
    fn epochs_and_seeds_have_orders_of_their_own_unless_nothing_is_shuffled() {
        let index = BlockIndex::new(&[50; 4]).unwrap();
        let order = |shuffle, seed, epoch| -> Vec<Place> {
            let order = EpochOrder::new(&index, shuffle, seed, epoch);
            (0..200).map(|at| order.at(at)).collect()
        };
        for shuffle in [Shuffle::Windows, Shuffle::Full] {
            let all =
                [order(shuffle, 1, 0), order(shuffle, 1, 1), order(shuffle, 2, 0), order(Shuffle::No, 1, 0)];
            for (at, one) in all.iter().enumerate() {
                assert!(all[..at].iter().all(|other| other != one));
            }
        }
        assert_eq!(order(Shuffle::No, 1, 0), order(Shuffle::No, 2, 5));
    }
}
