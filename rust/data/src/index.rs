//! The rows of a data set by their numbers: block after block, and in a block row after row.

use phalanx_types::{Error, ErrorKind, Result};

/// How many rows each block has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockIndex {
    /// The number of each block's first row, and behind them how many rows there are.
    starts: Vec<u64>,
}

/// Where a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The block's number.
    pub block: u32,
    /// The row's number in the block.
    pub row: u64,
}

impl BlockIndex {
    /// The index of blocks with so many rows each; a block may be empty.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for more blocks or rows than can be counted.
    pub fn new(rows: &[u64]) -> Result<BlockIndex> {
        let too_many = || Error::new(ErrorKind::Invalid, "the data set has more rows than can be counted");
        u32::try_from(rows.len()).map_err(|_| too_many())?;
        let mut starts = Vec::with_capacity(rows.len() + 1);
        let mut sum = 0u64;
        starts.push(0);
        for &rows in rows {
            // Half of what 64 bits count: sums of two positions have room.
            sum = sum.checked_add(rows).filter(|sum| *sum <= u64::MAX / 2).ok_or_else(too_many)?;
            starts.push(sum);
        }
        Ok(BlockIndex { starts })
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.starts.len() - 1
    }

    /// How many rows a block has.
    pub fn rows_of(&self, block: u32) -> u64 {
        let at = block as usize;
        self.starts[at + 1] - self.starts[at]
    }

    /// Where the row of this number is; there has to be one.
    pub fn place(&self, row: u64) -> Place {
        let block = containing(&self.starts, row);
        Place { block: block as u32, row: row - self.starts[block] }
    }
}

/// Which of the ranges that begin at `starts` has `position`: the last that begins there or before. So an empty one has
/// none.
pub(crate) fn containing(starts: &[u64], position: u64) -> usize {
    starts.partition_point(|start| *start <= position) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_place_and_empty_blocks_have_no_rows() {
        let index = BlockIndex::new(&[0, 2, 0, 0, 3, 0]).unwrap();
        let places: Vec<_> =
            (0..index.rows()).map(|row| index.place(row)).map(|at| (at.block, at.row)).collect();
        assert_eq!(places, [(1, 0), (1, 1), (4, 0), (4, 1), (4, 2)]);
        assert_eq!((index.blocks(), index.rows_of(4), BlockIndex::new(&[]).unwrap().rows()), (6, 3, 0));
    }

    #[test]
    fn more_rows_than_can_be_counted_are_refused() {
        for rows in [[u64::MAX, 1], [u64::MAX / 2, 1]] {
            assert_eq!(BlockIndex::new(&rows).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
