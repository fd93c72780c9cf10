//! Rows of several blocks, brought together in the order in which they are wanted.

use std::collections::HashMap;

use phalanx_types::{Error, ErrorKind, Result};

use crate::Place;

/// Rows that are wanted, and the blocks that have them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    blocks: Vec<u32>,
    /// For each row which of `blocks` has it, and its number there.
    rows: Vec<(u32, u64)>,
}

impl Wanted {
    /// The rows at these places, in their order.
    pub fn new(places: &[Place]) -> Wanted {
        let mut blocks = Vec::new();
        let mut numbers = HashMap::new();
        let rows = places
            .iter()
            .map(|place| {
                let number = *numbers.entry(place.block).or_insert_with(|| {
                    blocks.push(place.block);
                    blocks.len() as u32 - 1
                });
                (number, place.row)
            })
            .collect();
        Wanted { blocks, rows }
    }

    /// The numbers of the blocks that have rows of these, each once, as they are first wanted.
    pub fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    /// For each row which of `blocks` has it, and its number there.
    pub fn rows(&self) -> &[(u32, u64)] {
        &self.rows
    }

    /// Copies the rows to `to`, one behind another. A row has `width` bytes; `from` has the rows of each of `blocks`,
    /// one behind another.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where a row is not in its block's bytes, or `to` has another size than the rows.
    pub fn copy(&self, from: &[&[u8]], width: usize, to: &mut [u8]) -> Result<()> {
        if self.rows.len().checked_mul(width) != Some(to.len()) {
            let problem = format!("{} rows of {width} bytes don't fill {} bytes", self.rows.len(), to.len());
            return Err(Error::new(ErrorKind::Invalid, problem));
        }
        // A width that the compiler knows is one instruction, and no call.
        let copied = match width {
            0 => Some(()),
            1 => self.copy_fixed::<1>(from, to),
            2 => self.copy_fixed::<2>(from, to),
            4 => self.copy_fixed::<4>(from, to),
            8 => self.copy_fixed::<8>(from, to),
            _ => self.copy_wide(from, width, to),
        };
        copied.ok_or_else(|| Error::new(ErrorKind::Invalid, "a row is not in its block"))
    }

    fn copy_fixed<const WIDTH: usize>(&self, from: &[&[u8]], to: &mut [u8]) -> Option<()> {
        let from: Vec<_> = from.iter().map(|block| block.as_chunks::<WIDTH>().0).collect();
        for (target, (block, row)) in to.as_chunks_mut::<WIDTH>().0.iter_mut().zip(&self.rows) {
            *target = *from.get(*block as usize)?.get(usize::try_from(*row).ok()?)?;
        }
        Some(())
    }

    fn copy_wide(&self, from: &[&[u8]], width: usize, to: &mut [u8]) -> Option<()> {
        for (target, (block, row)) in to.chunks_exact_mut(width).zip(&self.rows) {
            let start = usize::try_from(*row).ok()?.checked_mul(width)?;
            target.copy_from_slice(from.get(*block as usize)?.get(start..start.checked_add(width)?)?);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_row_is_copied_from_its_place_whatever_its_width(
            blocks in proptest::collection::vec(1u64..20, 1..6),
            picks in proptest::collection::vec((any::<u32>(), any::<u64>()), 0..60),
            width in prop_oneof![Just(0usize), Just(1), Just(2), Just(3), Just(4), Just(8), Just(24)],
        ) {
            let byte = |block: u32, at: u64| (u64::from(block) * 31 + at) as u8;
            let places: Vec<_> = picks
                .iter()
                .map(|(block, row)| (block % blocks.len() as u32, row))
                .map(|(block, row)| Place { block, row: row % blocks[block as usize] })
                .collect();
            let wanted = Wanted::new(&places);
            let held: Vec<Vec<u8>> = wanted
                .blocks()
                .iter()
                .map(|block| (0..blocks[*block as usize] * width as u64).map(|at| byte(*block, at)).collect())
                .collect();
            let from: Vec<&[u8]> = held.iter().map(Vec::as_slice).collect();
            let mut to = vec![0; places.len() * width];
            wanted.copy(&from, width, &mut to).unwrap();
            let expected: Vec<u8> = places
                .iter()
                .flat_map(|place| (0..width as u64).map(|at| byte(place.block, place.row * width as u64 + at)))
                .collect();
            prop_assert_eq!(to, expected);
        }
    }

    #[test]
    fn a_row_beyond_its_block_and_a_target_of_another_size_are_refused() {
        let wanted = Wanted::new(&[Place { block: 7, row: 2 }]);
        for width in [4, 5] {
            let block = vec![0; 3 * width - 1];
            let mut to = vec![0; width];
            for from in [&[block.as_slice()][..], &[]] {
                assert_eq!(wanted.copy(from, width, &mut to).unwrap_err().kind(), ErrorKind::Invalid);
            }
            assert_eq!(wanted.copy(&[&[0; 99]], width, &mut to[1..]).unwrap_err().kind(), ErrorKind::Invalid);
            wanted.copy(&[&[0; 99]], width, &mut to).unwrap();
        }
    }
}
