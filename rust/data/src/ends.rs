//! Where the pieces of a block's bytes, or its elements, begin and end, as Arrow's format has it.

use std::ops::Range;

/// Where each row begins, and where the last one ends: integers in the machine's byte order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ends<'a> {
    Narrow(&'a [[u8; 4]]),
    Wide(&'a [[u8; 8]]),
}

impl<'a> Ends<'a> {
    /// Of integers of 64 bits where they are `wide`, and of 32 else.
    pub(crate) fn new(ends: &'a [u8], wide: bool) -> Ends<'a> {
        if wide { Ends::Wide(ends.as_chunks().0) } else { Ends::Narrow(ends.as_chunks().0) }
    }

    /// How many rows there are.
    pub(crate) fn rows(&self) -> usize {
        let ends = match self {
            Ends::Narrow(ends) => ends.len(),
            Ends::Wide(ends) => ends.len(),
        };
        ends.saturating_sub(1)
    }

    /// Where a row is, which may be anywhere; None where there is no such row.
    pub(crate) fn range(&self, row: usize) -> Option<Range<usize>> {
        Some(self.at(row)?..self.at(row.checked_add(1)?)?)
    }

    /// Where a row begins, which is where the one before it ends.
    pub(crate) fn at(&self, row: usize) -> Option<usize> {
        match self {
            Ends::Narrow(ends) => usize::try_from(i32::from_ne_bytes(*ends.get(row)?)).ok(),
            Ends::Wide(ends) => usize::try_from(i64::from_ne_bytes(*ends.get(row)?)).ok(),
        }
    }
}
