//! Which positions of an epoch's order a rank takes at each step.
//!
//! A step takes as many rows as all ranks have in a batch, the next ones of the order, and each rank its part of them.
//! So a place in the training is an epoch and a number of rows, and means the same for any number of ranks.
//!
//! - PLAN-6 (equal-steps): every rank has the same number of steps, and each of its batches has the same size.
//! - PLAN-7 (every-row): an epoch from its beginning takes each row exactly once. With `Drop` it leaves out the last
//!   few, less than a step takes; with `Wrap` the last step takes some rows once more, with `Pad` these are masked.
//! - PLAN-8 (resumes): whatever has been taken by one number of ranks, another goes on with the next row of the same
//!   order.
//! - PLAN-9 (any-cut): with a fixed number of rows for a block of the order, which rows a rank takes doesn't depend on
//!   where the blocks that are there were cut.

use phalanx_types::{Error, ErrorKind, Result};

use crate::index::{BlockIndex, Place};
use crate::order::{EpochOrder, Shuffle};

/// What the order of an epoch is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The blocks that are there.
    AsStored,
    /// Blocks of so many rows, wherever these are.
    Even(u64),
}

/// What becomes of the rows at an epoch's end that are too few for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uneven {
    /// They are left out.
    Drop,
    /// The step takes rows from the beginning of the epoch's order, too.
    Wrap,
    /// As `Wrap`, and the part says which rows are there for their number only.
    Pad,
}

/// Some steps of an epoch, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// The first.
    pub first: u64,
    /// How many there are, at most.
    pub count: u64,
    /// How far the next is from one: 1 for steps one after the other. Not 0.
    pub every: u64,
}

/// The rows of one rank in some steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Part {
    /// Where they are, step after step.
    pub places: Vec<Place>,
    /// With [`Uneven::Pad`]: whether each counts. The others only fill the batch.
    pub counts: Option<Vec<bool>>,
}

/// A rank's plan for all epochs.
#[derive(Debug, Clone)]
pub struct Plan {
    index: BlockIndex,
    /// The blocks that the order is made of, where these are others.
    even: Option<BlockIndex>,
    shuffle: Shuffle,
    uneven: Uneven,
    seed: u64,
    batch: u64,
    rank: u64,
    world: u64,
    /// The order that was asked for last.
    order: Option<(u64, EpochOrder)>,
}

impl Plan {
    /// That of `rank`, one of `world` ranks with `batch` rows a step each.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for no ranks, no rows a step, a rank that isn't one of them, or too many blocks.
    #[allow(clippy::too_many_arguments, reason = "each is a plain fact of its own")]
    pub fn new(
        index: BlockIndex,
        cut: Cut,
        shuffle: Shuffle,
        uneven: Uneven,
        seed: u64,
        batch: u32,
        rank: u32,
        world: u32,
    ) -> Result<Plan> {
        if batch == 0 {
            return Err(Error::new(ErrorKind::Invalid, "batch_size has to be positive"));
        }
        if rank >= world {
            let problem = format!("there is no rank {rank} among {world} ranks");
            return Err(Error::new(ErrorKind::Invalid, problem));
        }
        let (batch, rank, world) = (u64::from(batch), u64::from(rank), u64::from(world));
        let even = match cut {
            Cut::AsStored => None,
            Cut::Even(size) => Some(BlockIndex::even(index.rows(), size)?),
        };
        Ok(Plan { index, even, shuffle, uneven, seed, batch, rank, world, order: None })
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.index.rows()
    }

    /// How many rows of the order a step takes.
    pub fn rows_a_step(&self) -> u64 {
        self.batch * self.world
    }

    /// How many steps an epoch has from `row` of its order on.
    pub fn steps_from(&self, row: u64) -> u64 {
        let left = self.rows().saturating_sub(row);
        match self.uneven {
            Uneven::Drop => left / self.rows_a_step(),
            Uneven::Wrap | Uneven::Pad => left.div_ceil(self.rows_a_step()),
        }
    }

    /// The first `count` blocks that an epoch needs from `row` of its order on, those first that are needed first.
    pub fn blocks_from(&mut self, epoch: u64, row: u64, count: usize) -> Vec<u32> {
        if row >= self.rows() {
            return Vec::new();
        }
        let cut = self.even.as_ref().unwrap_or(&self.index);
        let order = ordered(&mut self.order, epoch, || EpochOrder::new(cut, self.shuffle, self.seed, epoch));
        let Some(even) = &self.even else { return order.blocks_from(row).take(count).collect() };
        let mut found = Vec::with_capacity(count);
        for block in order.blocks_from(row) {
            let first = even.start_of(block);
            let ends = [first, first + even.rows_of(block) - 1].map(|row| self.index.place(row).block);
            for block in (ends[0]..=ends[1]).filter(|block| self.index.rows_of(*block) > 0) {
                if found.len() == count {
                    return found;
                }
                if !found.contains(&block) {
                    found.push(block);
                }
            }
        }
        found
    }

    /// The rank's rows in steps of an epoch, the first of which begins at `row` of its order; there are fewer where the
    /// epoch has fewer.
    pub fn take(&mut self, epoch: u64, row: u64, wanted: Steps) -> Part {
        let end = self.steps_from(row);
        let every = wanted.every.max(1);
        let steps = end.saturating_sub(wanted.first).div_ceil(every).min(wanted.count);
        let (rows, batch, step) = (self.rows(), self.batch, self.rows_a_step());
        let own = row + wanted.first * step + self.rank * batch;
        let positions = (0..steps).flat_map(|at| {
            let first = own + at * every * step;
            first..first + batch
        });
        let counts = (self.uneven == Uneven::Pad).then(|| positions.clone().map(|at| at < rows).collect());
        let cut = self.even.as_ref().unwrap_or(&self.index);
        let order = ordered(&mut self.order, epoch, || EpochOrder::new(cut, self.shuffle, self.seed, epoch));
        let places = positions.map(|at| order.at(at % rows));
        let places = match &self.even {
            None => places.collect(),
            Some(even) => places.map(|at| self.index.place(even.start_of(at.block) + at.row)).collect(),
        };
        Part { places, counts }
    }
}

/// The order of `epoch`: that which is kept, or a new one.
fn ordered(
    kept: &mut Option<(u64, EpochOrder)>,
    epoch: u64,
    new: impl FnOnce() -> EpochOrder,
) -> &EpochOrder {
    let found = kept.take().filter(|(of, _)| *of == epoch);
    &kept.insert(found.unwrap_or_else(|| (epoch, new()))).1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(blocks: &[u64], shuffle: Shuffle, uneven: Uneven, batch: u32, rank: u32, world: u32) -> Plan {
        cut_plan(blocks, Cut::AsStored, shuffle, uneven, (batch, rank, world))
    }

    fn cut_plan(
        blocks: &[u64],
        cut: Cut,
        shuffle: Shuffle,
        uneven: Uneven,
        (batch, rank, world): (u32, u32, u32),
    ) -> Plan {
        Plan::new(BlockIndex::new(blocks).unwrap(), cut, shuffle, uneven, 5, batch, rank, world).unwrap()
    }

    /// What all ranks take from `row` on, in the order in which the steps take it; whether each row counts.
    fn taken(plans: &mut [Plan], epoch: u64, row: u64, steps: u64) -> Vec<(Place, bool)> {
        let parts: Vec<Part> = plans.iter_mut().map(|plan| plan.take(epoch, row, next(steps))).collect();
        let batch = plans[0].batch as usize;
        let steps = parts[0].places.len() / batch;
        let mut all = Vec::new();
        for step in 0..steps {
            for part in &parts {
                for at in step * batch..(step + 1) * batch {
                    all.push((part.places[at], part.counts.as_ref().is_none_or(|counts| counts[at])));
                }
            }
        }
        all
    }

    fn next(count: u64) -> Steps {
        Steps { first: 0, count, every: 1 }
    }

    fn ranks(blocks: &[u64], shuffle: Shuffle, uneven: Uneven, batch: u32, world: u32) -> Vec<Plan> {
        (0..world).map(|rank| plan(blocks, shuffle, uneven, batch, rank, world)).collect()
    }

    fn blocks() -> impl Strategy<Value = Vec<u64>> {
        let one = prop_oneof![3 => Just(0u64), 10 => 1u64..40, 1 => 1_000u64..9_000];
        prop_oneof![
            prop::collection::vec(one, 0..30),
            prop::collection::vec(prop_oneof![Just(0u64), 1u64..9], 900..1001),
        ]
    }

    fn shuffles() -> impl Strategy<Value = Shuffle> {
        prop_oneof![Just(Shuffle::No), Just(Shuffle::Windows), Just(Shuffle::Full)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn an_epoch_takes_each_row_once_in_equal_steps(
            blocks in blocks(),
            shuffle in shuffles(),
            batch in 1u32..70,
            world in 1u32..10,
            epoch in 0u64..3,
        ) {
            let rows: u64 = blocks.iter().sum();
            let step = u64::from(batch * world);
            for uneven in [Uneven::Drop, Uneven::Wrap, Uneven::Pad] {
                let mut plans = ranks(&blocks, shuffle, uneven, batch, world);
                let steps = plans[0].steps_from(0);
                for plan in &mut plans {
                    prop_assert_eq!(plan.steps_from(0), steps, "PLAN-6");
                    let part = plan.take(epoch, 0, next(u64::MAX));
                    prop_assert_eq!(part.places.len() as u64, steps * u64::from(batch), "PLAN-6");
                }
                let all = taken(&mut plans, epoch, 0, u64::MAX);
                let mut counted: Vec<_> =
                    all.iter().filter(|(_, counts)| *counts).map(|(place, _)| *place).collect();
                let before = counted.len() as u64;
                counted.sort_unstable();
                counted.dedup();
                let after = counted.len() as u64;
                match uneven {
                    Uneven::Drop => prop_assert!(before == after && rows - after == rows % step, "PLAN-7"),
                    Uneven::Wrap => prop_assert!(after == rows && before - after < step, "PLAN-7"),
                    Uneven::Pad => prop_assert!(before == after && after == rows, "PLAN-7"),
                }
            }
        }

        #[test]
        fn another_number_of_ranks_goes_on_with_the_next_row(
            blocks in blocks(),
            shuffle in shuffles(),
            batches in (1u32..40, 1u32..40),
            worlds in (1u32..10, 1u32..10),
            steps in 0u64..30,
        ) {
            let mut first = ranks(&blocks, shuffle, Uneven::Drop, batches.0, worlds.0);
            let mut other = ranks(&blocks, shuffle, Uneven::Pad, batches.1, worlds.1);
            let mut alone = ranks(&blocks, shuffle, Uneven::Pad, 1, 1);
            let whole: Vec<_> = taken(&mut alone, 1, 0, u64::MAX);
            let mut seen = taken(&mut first, 1, 0, steps);
            let row = seen.len() as u64;
            let rest: Vec<_> = taken(&mut other, 1, row, u64::MAX).into_iter().filter(|(_, counts)| *counts).collect();
            seen.extend(rest);
            prop_assert_eq!(seen, whole, "PLAN-8");
        }

        #[test]
        fn where_blocks_were_cut_makes_no_difference_to_an_order_of_even_ones(
            blocks in blocks(),
            others in prop::collection::vec(0u64..3_000, 0..40),
            size in prop_oneof![1u64..5, 1u64..5_000],
            shuffle in shuffles(),
            batch in 1u32..70,
            row in 0u64..200,
        ) {
            // The same rows in other blocks: the last takes what is left.
            let rows: u64 = blocks.iter().sum();
            let mut left = rows;
            let mut other = Vec::new();
            for wanted in others {
                other.push(left.min(wanted));
                left -= left.min(wanted);
            }
            other.push(left);
            let taken = |blocks: &[u64], cut| {
                let mut plan = cut_plan(blocks, cut, shuffle, Uneven::Pad, (batch, 1, 3));
                let part = plan.take(4, row, next(u64::MAX));
                let index = BlockIndex::new(blocks).unwrap();
                let rows: Vec<u64> = part.places.iter().map(|at| index.start_of(at.block) + at.row).collect();
                (rows, part.counts)
            };
            prop_assert_eq!(taken(&blocks, Cut::Even(size)), taken(&other, Cut::Even(size)), "PLAN-9");
            // A block without rows would be one more to shuffle.
            let mut even = vec![size; (rows / size) as usize];
            even.extend(Some(rows % size).filter(|left| *left > 0));
            prop_assert_eq!(taken(&blocks, Cut::Even(size)), taken(&even, Cut::AsStored), "PLAN-9");
        }

        #[test]
        fn the_blocks_that_are_needed_first_are_told_first(
            blocks in blocks(), size in 1u64..5_000, shuffle in shuffles(), row in 0u64..500, count in 1usize..40,
        ) {
            let mut plan = cut_plan(&blocks, Cut::Even(size), shuffle, Uneven::Pad, (1, 0, 1));
            let told = plan.blocks_from(1, row, count);
            prop_assert!(told.len() <= count && told.iter().all(|block| blocks[*block as usize] > 0));
            let mut all = plan.blocks_from(1, row, blocks.len());
            prop_assert_eq!(&all[..told.len()], &told);
            if row < plan.rows() {
                all.sort_unstable();
                let needed = plan.take(1, row, next(u64::MAX)).places;
                prop_assert!(needed.iter().all(|at| all.binary_search(&at.block).is_ok()));
            }
        }

        #[test]
        fn steps_may_be_asked_for_one_by_one_or_many_at_a_time(
            blocks in blocks(), shuffle in shuffles(), batch in 1u32..40, rank in 0u32..3, cut in 0u64..20,
        ) {
            for uneven in [Uneven::Drop, Uneven::Wrap, Uneven::Pad] {
                let mut plan = plan(&blocks, shuffle, uneven, batch, rank, 3);
                let whole = plan.take(2, 0, next(u64::MAX));
                let mut parts = plan.take(2, 0, next(cut));
                let rest = plan.take(2, cut * plan.rows_a_step(), next(u64::MAX));
                parts.places.extend(rest.places);
                if let (Some(counts), Some(more)) = (&mut parts.counts, rest.counts) {
                    counts.extend(more);
                }
                prop_assert_eq!(&parts, &whole);
                // Several who take every so many of them have them all, by turns.
                let batch = plan.batch as usize;
                let mut by_turns = vec![Vec::new(); whole.places.len() / batch];
                for first in 0..cut.max(1) {
                    let mine = plan.take(2, 0, Steps { first, count: u64::MAX, every: cut.max(1) });
                    for (turn, places) in mine.places.chunks(batch).enumerate() {
                        by_turns[first as usize + turn * cut.max(1) as usize] = places.to_vec();
                    }
                }
                prop_assert_eq!(by_turns.concat(), whole.places);
            }
        }
    }

    #[test]
    fn a_step_takes_the_next_rows_and_each_rank_its_part() {
        let mut second = plan(&[20], Shuffle::No, Uneven::Drop, 3, 1, 2);
        let rows: Vec<_> = second.take(0, 6, next(2)).places.iter().map(|at| at.row).collect();
        assert_eq!(rows, [9, 10, 11, 15, 16, 17]);
        assert_eq!((second.steps_from(0), second.steps_from(18), second.steps_from(99)), (3, 0, 0));
    }

    #[test]
    fn fewer_rows_than_a_step_takes_are_wrapped_or_padded_again_and_again() {
        let rows = |part: &Part| part.places.iter().map(|at| at.row).collect::<Vec<_>>();
        let mut wrapped = plan(&[2], Shuffle::No, Uneven::Wrap, 4, 1, 2);
        assert_eq!((wrapped.steps_from(0), rows(&wrapped.take(0, 0, next(9)))), (1, vec![0, 1, 0, 1]));
        let mut padded = plan(&[2], Shuffle::No, Uneven::Pad, 4, 0, 2);
        assert_eq!(padded.take(0, 0, next(9)).counts, Some(vec![true, true, false, false]));
        let mut none = plan(&[0, 0], Shuffle::Windows, Uneven::Pad, 4, 0, 2);
        assert_eq!(none.take(0, 0, next(9)).places, []);
    }

    #[test]
    fn what_can_not_be_planned_is_refused() {
        let index = BlockIndex::new(&[1]).unwrap();
        for (batch, rank, world) in [(0, 0, 1), (1, 1, 1), (1, 0, 0)] {
            let refused =
                Plan::new(index.clone(), Cut::AsStored, Shuffle::No, Uneven::Drop, 0, batch, rank, world);
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
