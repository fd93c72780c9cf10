//! Rows of several blocks, brought together in the order in which they are wanted.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use phalanx_types::{Error, ErrorKind, Result};

use crate::Place;

/// Of columns whose rows are small, so many rows are gathered at a time: column after column, so that the processor has
/// the addresses of one column's pages at hand. Between 1,024 and 16,384 rows made no difference beyond the noise.
const AHEAD_ROWS: usize = 4096;
/// A row of more bytes takes longer to copy than to find.
const NARROW_BYTES: usize = 256;

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
}

/// A column of numbers: where its rows are, each of which has so many bytes in one piece.
#[derive(Debug, Clone)]
pub struct Column<'a> {
    width: usize,
    held: Held<'a>,
}

/// Rows, one behind another.
#[derive(Debug, Clone)]
enum Held<'a> {
    /// All rows of each of [`Wanted::blocks`].
    Blocks(Vec<&'a [u8]>),
    /// The wanted ones in their order.
    InOrder(&'a [u8]),
}

impl<'a> Column<'a> {
    /// A column whose rows have `width` bytes; `blocks` has all of those of each of [`Wanted::blocks`].
    pub fn of_blocks(width: usize, blocks: Vec<&'a [u8]>) -> Column<'a> {
        Column { width, held: Held::Blocks(blocks) }
    }

    /// A column whose rows have `width` bytes, and stand in the order in which they are wanted.
    pub fn in_order(width: usize, rows: &'a [u8]) -> Column<'a> {
        Column { width, held: Held::InOrder(rows) }
    }

    /// How many bytes so many rows have; none where no memory is as large.
    pub fn bytes_of(&self, rows: usize) -> Option<usize> {
        self.width.checked_mul(rows)
    }

    /// Whether finding a row takes longer than copying it.
    fn is_scattered(&self) -> bool {
        matches!(self.held, Held::Blocks(_)) && self.width <= NARROW_BYTES
    }

    fn copy(&self, wanted: &Wanted, rows: &Range<usize>, to: &mut [u8]) -> Option<()> {
        match &self.held {
            Held::InOrder(held) => {
                to.copy_from_slice(held.get(bytes_of(rows, self.width)?)?);
                Some(())
            }
            Held::Blocks(blocks) => copy_rows(wanted.rows.get(rows.clone())?, blocks, self.width, to),
        }
    }
}

/// Columns of the rows that are wanted, from which some rows are copied at a time.
#[derive(Debug)]
pub struct Columns<'a> {
    wanted: Arc<Wanted>,
    columns: Vec<Column<'a>>,
    /// The rows that are gathered ahead, and for each column their bytes.
    ahead: Range<usize>,
    gathered: Vec<Vec<u8>>,
}

impl<'a> Columns<'a> {
    /// These columns; those of blocks have the blocks of `wanted`.
    pub fn new(wanted: Arc<Wanted>, columns: Vec<Column<'a>>) -> Columns<'a> {
        let gathered = columns.iter().map(|_| Vec::new()).collect();
        Columns { wanted, columns, ahead: 0..0, gathered }
    }

    /// The columns.
    pub fn columns(&self) -> &[Column<'a>] {
        &self.columns
    }

    /// Copies `count` rows from the `first` on, one behind another, of each column to the next of `to`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where a row is not wanted, or not there, or one of `to` has another size than the rows.
    pub fn copy<'t>(
        &mut self,
        first: usize,
        count: usize,
        to: impl IntoIterator<Item = &'t mut [u8]>,
    ) -> Result<()> {
        let copied = first.checked_add(count).and_then(|last| self.copy_all(first..last, to));
        copied.ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "rows are not there, or have another size than their place")
        })
    }

    fn copy_all<'t>(&mut self, rows: Range<usize>, to: impl IntoIterator<Item = &'t mut [u8]>) -> Option<()> {
        self.gather(&rows)?;
        let mut to = to.into_iter();
        for (column, gathered) in self.columns.iter().zip(&self.gathered) {
            let to = to.next().filter(|to| Some(to.len()) == column.bytes_of(rows.len()))?;
            if gathered.is_empty() {
                column.copy(&self.wanted, &rows, to)?;
            } else {
                let own = rows.start - self.ahead.start..rows.end - self.ahead.start;
                to.copy_from_slice(gathered.get(bytes_of(&own, column.width)?)?);
            }
        }
        to.next().is_none().then_some(())
    }

    /// Gathers these rows ahead, and the next ones, where that pays.
    fn gather(&mut self, rows: &Range<usize>) -> Option<()> {
        if rows.start >= self.ahead.start && rows.end <= self.ahead.end {
            return Some(());
        }
        self.ahead = 0..0;
        let count = AHEAD_ROWS / rows.len().max(1) * rows.len();
        let ahead = rows.start..rows.start.checked_add(count)?.min(self.wanted.rows.len());
        for (column, gathered) in self.columns.iter().zip(&mut self.gathered) {
            if count > rows.len() && column.is_scattered() {
                gathered.resize(column.bytes_of(ahead.len())?, 0);
                column.copy(&self.wanted, &ahead, gathered)?;
            } else {
                gathered.clear();
            }
        }
        self.ahead = ahead;
        Some(())
    }
}

fn copy_rows(rows: &[(u32, u64)], from: &[&[u8]], width: usize, to: &mut [u8]) -> Option<()> {
    // A width that the compiler knows is one instruction, and no call.
    match width {
        0 => Some(()),
        1 => copy_fixed::<1>(rows, from, to),
        2 => copy_fixed::<2>(rows, from, to),
        4 => copy_fixed::<4>(rows, from, to),
        8 => copy_fixed::<8>(rows, from, to),
        _ => copy_wide(rows, from, width, to),
    }
}

fn copy_fixed<const WIDTH: usize>(rows: &[(u32, u64)], from: &[&[u8]], to: &mut [u8]) -> Option<()> {
    for (target, (block, row)) in to.as_chunks_mut::<WIDTH>().0.iter_mut().zip(rows) {
        *target = *from.get(*block as usize)?.as_chunks::<WIDTH>().0.get(usize::try_from(*row).ok()?)?;
    }
    Some(())
}

fn copy_wide(rows: &[(u32, u64)], from: &[&[u8]], width: usize, to: &mut [u8]) -> Option<()> {
    for (target, (block, row)) in to.chunks_exact_mut(width).zip(rows) {
        target.copy_from_slice(piece(from.get(*block as usize)?, usize::try_from(*row).ok()?, width, width)?);
    }
    Some(())
}

/// Where the bytes of these rows are.
fn bytes_of(rows: &Range<usize>, width: usize) -> Option<Range<usize>> {
    Some(rows.start.checked_mul(width)?..rows.end.checked_mul(width)?)
}

/// So many bytes from a row on.
fn piece(rows: &[u8], row: usize, width: usize, bytes: usize) -> Option<&[u8]> {
    let start = row.checked_mul(width)?;
    rows.get(start..start.checked_add(bytes)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn copied(columns: &mut Columns<'_>, first: usize, count: usize) -> Vec<Vec<u8>> {
        let bytes = |column: &Column<'_>| vec![0; column.bytes_of(count).unwrap()];
        let mut to: Vec<Vec<u8>> = columns.columns().iter().map(bytes).collect();
        columns.copy(first, count, to.iter_mut().map(Vec::as_mut_slice)).unwrap();
        to
    }

    fn of_one<'a>(wanted: &Arc<Wanted>, column: Column<'a>) -> Columns<'a> {
        Columns::new(Arc::clone(wanted), vec![column])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn each_row_is_copied_from_its_place_whatever_its_width_and_how_many_at_a_time(
            blocks in proptest::collection::vec(1u64..20, 1..6),
            picks in prop_oneof![
                3 => proptest::collection::vec((any::<u32>(), any::<u64>()), 0..60),
                1 => proptest::collection::vec((any::<u32>(), any::<u64>()), 2 * AHEAD_ROWS..3 * AHEAD_ROWS),
            ],
            widths in proptest::collection::vec(
                prop_oneof![0usize..5, Just(8), Just(24), Just(NARROW_BYTES + 1)],
                0..4,
            ),
            at_once in prop_oneof![1usize..70, Just(AHEAD_ROWS / 2), Just(AHEAD_ROWS + 1)],
        ) {
            let byte = |width: usize, block: u32, at: u64| (u64::from(block) * 31 + at + width as u64) as u8;
            let places: Vec<_> = picks
                .iter()
                .map(|(block, row)| (block % blocks.len() as u32, row))
                .map(|(block, row)| Place { block, row: row % blocks[block as usize] })
                .collect();
            let wanted = Arc::new(Wanted::new(&places));
            let held = |width: usize| -> Vec<Vec<u8>> {
                let bytes = |block: &u32| blocks[*block as usize] * width as u64;
                let of = |block| (0..bytes(block)).map(|at| byte(width, *block, at)).collect();
                wanted.blocks().iter().map(of).collect()
            };
            let ordered = |width: usize| -> Vec<u8> {
                let start = |place: &Place| place.row * width as u64;
                let row = |place: &Place| {
                    let (block, start) = (place.block, start(place));
                    (0..width as u64).map(move |at| byte(width, block, start + at))
                };
                places.iter().flat_map(row).collect()
            };
            let held: Vec<_> = widths.iter().map(|width| (*width, held(*width), ordered(*width))).collect();
            let columns = held.iter().flat_map(|(width, blocks, rows)| {
                let blocks = blocks.iter().map(Vec::as_slice).collect();
                [Column::of_blocks(*width, blocks), Column::in_order(*width, rows)]
            });
            let mut columns = Columns::new(Arc::clone(&wanted), columns.collect());
            let mut found = vec![Vec::new(); 2 * held.len()];
            for first in (0..places.len()).step_by(at_once) {
                let parts = copied(&mut columns, first, at_once.min(places.len() - first));
                found.iter_mut().zip(parts).for_each(|(all, part)| all.extend(part));
            }
            for ((_, _, rows), both) in held.iter().zip(found.chunks(2)) {
                prop_assert!(both.iter().all(|one| one == rows));
            }
            if !places.is_empty() { // and those that have been copied once more
                let again = copied(&mut columns, 0, 1);
                let is_first = |(one, (width, _, rows)): (&[Vec<u8>], &(usize, _, Vec<u8>))| {
                    one.iter().all(|one| one == &rows[..*width])
                };
                prop_assert!(again.chunks(2).zip(&held).all(is_first));
            }
        }
    }

    #[test]
    fn rows_that_are_not_there_and_a_target_of_another_size_are_refused() {
        let wanted = Arc::new(Wanted::new(&[Place { block: 7, row: 2 }, Place { block: 7, row: 0 }]));
        for width in [4, 5, NARROW_BYTES + 1] {
            let (short, whole) = (vec![0; 3 * width - 1], vec![0; 3 * width]);
            let refused = |column: Column<'_>, first, count, bytes: &[usize]| {
                let mut to: Vec<Vec<u8>> = bytes.iter().map(|bytes| vec![0; *bytes]).collect();
                let found = of_one(&wanted, column).copy(first, count, to.iter_mut().map(Vec::as_mut_slice));
                assert_eq!(found.unwrap_err().kind(), ErrorKind::Invalid);
            };
            refused(Column::of_blocks(width, vec![&short]), 0, 1, &[width]);
            refused(Column::of_blocks(width, vec![]), 0, 1, &[width]);
            refused(Column::of_blocks(width, vec![&whole]), 0, 1, &[width - 1]);
            refused(Column::of_blocks(width, vec![&whole]), 0, 1, &[]);
            refused(Column::of_blocks(width, vec![&whole]), 0, 1, &[width, width]);
            refused(Column::of_blocks(width, vec![&whole]), 0, 3, &[3 * width]);
            refused(Column::of_blocks(width, vec![&whole]), 5, 1, &[width]);
            refused(Column::of_blocks(width, vec![&whole]), usize::MAX, 1, &[width]);
            refused(Column::in_order(width, &short), 2, 1, &[width]);
            refused(Column::in_order(width, &whole), 3, 1, &[width]);
            refused(Column::in_order(width, &whole), usize::MAX - 1, 1, &[width]);
            refused(Column::in_order(width, &whole), 0, usize::MAX, &[width]);
            assert_eq!(
                copied(&mut of_one(&wanted, Column::of_blocks(width, vec![&whole])), 0, 2)[0].len(),
                2 * width
            );
            assert_eq!(
                copied(&mut of_one(&wanted, Column::in_order(width, &whole)), 1, 2)[0].len(),
                2 * width
            );
        }
    }
}
