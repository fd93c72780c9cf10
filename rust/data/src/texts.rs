//! The strings or bytes of a block.

use phalanx_types::{Error, ErrorKind, Result};

use crate::Wanted;
use crate::ends::Ends;

/// The rows of one block, each of which is a piece of `bytes`, as Arrow's format has them.
#[derive(Debug, Clone, Copy)]
pub struct Texts<'a> {
    ends: Ends<'a>,
    bytes: &'a [u8],
    /// For each row whether it is one, and no null; nothing where all are.
    valid: Option<&'a [u8]>,
}

impl<'a> Texts<'a> {
    /// `ends` are integers in the machine's byte order, one more than there are rows, of 64 bits where they are `wide`
    /// and of 32 else. `valid` has a byte for each row.
    pub fn new(ends: &'a [u8], wide: bool, bytes: &'a [u8], valid: Option<&'a [u8]>) -> Texts<'a> {
        Texts { ends: Ends::new(ends, wide), bytes, valid }
    }

    /// All rows, in their order; None is a null.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where a row is not in the block's bytes.
    pub fn all(&self) -> Result<Vec<Option<&'a [u8]>>> {
        (0..self.ends.rows()).map(|row| self.row(row as u64)).collect::<Option<_>>().ok_or_else(missing)
    }

    /// A row; None within it is a null, and None instead of it is no row of this block.
    fn row(&self, row: u64) -> Option<Option<&'a [u8]>> {
        let at = usize::try_from(row).ok()?;
        if let Some(valid) = self.valid
            && *valid.get(at)? == 0
        {
            return Some(None);
        }
        self.bytes.get(self.ends.range(at)?).map(Some)
    }
}

impl Wanted {
    /// The rows, in their order, of strings or bytes; `from` has those of each of [`Wanted::blocks`]. None is a null.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where a row is not in its block.
    pub fn texts<'a>(&self, from: &[Texts<'a>]) -> Result<Vec<Option<&'a [u8]>>> {
        let row = |(block, row): &(u32, u64)| from.get(*block as usize)?.row(*row);
        self.rows().iter().map(row).collect::<Option<_>>().ok_or_else(missing)
    }
}

fn missing() -> Error {
    Error::new(ErrorKind::Invalid, "a row is not in its block")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::Place;

    use super::*;

    fn ends_of(rows: &[Option<Vec<u8>>], wide: bool) -> Vec<u8> {
        let mut end = 7; // a block may be a piece of a larger one
        let mut ends = vec![end];
        for row in rows {
            end += row.as_ref().map_or(0, Vec::len);
            ends.push(end);
        }
        if wide {
            ends.iter().flat_map(|end| (*end as i64).to_ne_bytes()).collect()
        } else {
            ends.iter().flat_map(|end| (*end as i32).to_ne_bytes()).collect()
        }
    }

    proptest! {
        #[test]
        fn each_row_is_the_piece_of_its_block(
            blocks in proptest::collection::vec(
                proptest::collection::vec(proptest::option::of(proptest::collection::vec(any::<u8>(), 0..5)), 1..9),
                1..5,
            ),
            picks in proptest::collection::vec((any::<u32>(), any::<u64>()), 0..40),
            wide in any::<bool>(),
        ) {
            let places: Vec<_> = picks
                .iter()
                .map(|(block, row)| (block % blocks.len() as u32, row))
                .map(|(block, row)| Place { block, row: row % blocks[block as usize].len() as u64 })
                .collect();
            let wanted = Wanted::new(&places);
            let memory: Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> = blocks
                .iter()
                .map(|rows| {
                    let bytes = [vec![0; 7], rows.iter().flatten().flatten().copied().collect()].concat();
                    (ends_of(rows, wide), bytes, rows.iter().map(|row| u8::from(row.is_some())).collect())
                })
                .collect();
            let texts = |at: usize| {
                let (ends, bytes, valid) = &memory[at];
                Texts::new(ends, wide, bytes, Some(valid))
            };
            let from: Vec<_> = wanted.blocks().iter().map(|block| texts(*block as usize)).collect();
            let expected: Vec<_> =
                places.iter().map(|place| blocks[place.block as usize][place.row as usize].as_deref()).collect();
            prop_assert_eq!(wanted.texts(&from).unwrap(), expected);
            for (at, rows) in blocks.iter().enumerate() {
                prop_assert_eq!(texts(at).all().unwrap(), rows.iter().map(Option::as_deref).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn rows_that_are_not_in_their_block_are_refused() {
        let ends = [0i32, 2, 9, -1, 4].map(i32::to_ne_bytes).concat();
        let texts = Texts::new(&ends, false, &[1, 2, 3, 4], None);
        assert_eq!(texts.row(0), Some(Some(&[1, 2][..])));
        for row in [1, 2, 3, 4, u64::MAX] {
            let wanted = Wanted::new(&[Place { block: 3, row }]);
            assert_eq!(wanted.texts(&[texts]).unwrap_err().kind(), ErrorKind::Invalid);
        }
        assert_eq!(texts.all().unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(
            Wanted::new(&[Place { block: 0, row: 0 }]).texts(&[]).unwrap_err().kind(),
            ErrorKind::Invalid
        );
        assert_eq!(Texts::new(&[], true, &[], None).all().unwrap(), Vec::<Option<&[u8]>>::new());
    }
}
