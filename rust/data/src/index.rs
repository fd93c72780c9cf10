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

    /// The index of so many rows in blocks of `size` rows each, but for the last; a `size` of 0 is taken for 1.
    ///
    /// # Errors
    /// As [`BlockIndex::new`].
    pub fn even(rows: u64, size: u64) -> Result<BlockIndex> {
        let size = size.max(1);
        let whole = usize::try_from(rows / size).unwrap_or(usize::MAX);
        if whole >= u32::MAX as usize {
            return Err(too_many());
        }
        let mut blocks = vec![size; whole];
        blocks.extend((!rows.is_multiple_of(size)).then_some(rows % size));
        BlockIndex::new(&blocks)
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

    /// The number of a block's first row.
    pub(crate) fn start_of(&self, block: u32) -> u64 {
        self.starts[block as usize]
    }

    /// Where the row of this number is; there has to be one.
    pub fn place(&self, row: u64) -> Place {
        let block = containing(&self.starts, row);
        Place { block: block as u32, row: row - self.starts[block] }
    }
}

/// How many rows a block of an order has, for blocks that have so many rows and bytes each: as many as the largest, but
/// never so many that one would have more than twice `bytes_of_one`.
///
/// It is picked once, when a data set is first prepared: the order follows from it.
pub fn even_rows(rows: &[u64], bytes: &[u64], bytes_of_one: u64) -> u64 {
    let mut size = rows.iter().copied().max().unwrap_or(0).max(1);
    while size > 1 && largest(rows, bytes, size) > 2 * bytes_of_one {
        size = size.div_ceil(2);
    }
    size
}

/// About how many bytes the largest of even blocks has, where a block's rows are taken to be of one size.
fn largest(rows: &[u64], bytes: &[u64], size: u64) -> u64 {
    let (mut most, mut now, mut room) = (0u64, 0u64, size);
    for (&rows, &bytes) in rows.iter().zip(bytes) {
        let mut left = rows;
        while left > 0 {
            // Whole ones within this block are all alike.
            if room == size && left >= size {
                most = most.max(share(bytes, size, rows));
                left %= size;
                continue;
            }
            let some = left.min(room);
            now += share(bytes, some, rows);
            (left, room) = (left - some, room - some);
            if room == 0 {
                most = most.max(now);
                (now, room) = (0, size);
            }
        }
    }
    most.max(now)
}

fn share(bytes: u64, some: u64, rows: u64) -> u64 {
    (u128::from(bytes) * u128::from(some) / u128::from(rows.max(1))) as u64
}

fn too_many() -> Error {
    Error::new(ErrorKind::Invalid, "the data set has more rows than can be counted")
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
    fn even_blocks_have_as_many_rows_but_for_the_last() {
        let rows = |rows, size| -> Vec<u64> {
            let index = BlockIndex::even(rows, size).unwrap();
            (0..index.blocks() as u32).map(|block| index.rows_of(block)).collect()
        };
        assert_eq!(rows(7, 3), [3, 3, 1]);
        assert_eq!(rows(6, 3), [3, 3]);
        assert_eq!(rows(2, 0), [1, 1]);
        assert!(rows(0, 5).is_empty());
        assert_eq!(BlockIndex::even(u64::MAX, 1).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn even_blocks_are_as_large_as_those_that_are_there_and_bounded_where_rows_differ() {
        assert_eq!(even_rows(&[], &[], 100), 1);
        assert_eq!(even_rows(&[50, 7, 50], &[100, 14, 100], 100), 50);
        // A hundred small rows in one, and then ten that are a hundred times as large.
        assert_eq!(even_rows(&[100, 1, 1, 1, 1, 1, 1], &[100, 100, 100, 100, 100, 100, 100], 100), 2);
        assert_eq!(even_rows(&[1, 1], &[900, 900], 100), 1, "a row is as large as it is");
        for (rows, bytes) in [(vec![3, 10, 4, 90], vec![30, 10, 400, 100]), (vec![1000; 9], vec![100; 9])] {
            let size = even_rows(&rows, &bytes, 100);
            assert!(largest(&rows, &bytes, size) <= 200 || size == 1, "{rows:?} {size}");
        }
    }

    #[test]
    fn more_rows_than_can_be_counted_are_refused() {
        for rows in [[u64::MAX, 1], [u64::MAX / 2, 1]] {
            assert_eq!(BlockIndex::new(&rows).unwrap_err().kind(), ErrorKind::Invalid);
        }
    }
}
