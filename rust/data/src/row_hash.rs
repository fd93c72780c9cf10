//! The hashes of a block's rows, from its columns in memory: the same as Spark's for the expression of
//! `python/phalanx/feeding/blocks/row_hash.py` (FEED-64), as [`RowSums`].
//!
//! The hash of a row is a chain through its values, each step of which waits for the one before it. So many rows go
//! beside each other: some hundreds column by column, and those of one column of arrays by eight, element by element.
//! What isn't a number, or an array of numbers without nulls, goes row by row.

mod column;
mod sums;
mod xxh64;

use phalanx_types::Result;

use crate::ends::Ends;
use column::{Column, Fixed, Values, invalid, is_set};

pub use column::{Described, Kind};
pub use sums::RowSums;

/// With what the chain of a row begins.
const SEED: u64 = 42;

/// How many columns' nulls a number says.
const FLAGS: usize = 60;

/// The hashes of so many rows stay in the processor's nearest memory, from column to column.
const ROWS: usize = 1024;

/// How many arrays go beside each other. Of a step that takes 19 cycles from end to end a processor begins one every 5.
const LANES: usize = 8;

/// What the hashes of the rows come to. `described` are the columns, each before those below it.
///
/// # Errors
/// [`phalanx_types::ErrorKind::Invalid`] where a column lacks something, or has another number of rows.
pub fn row_sums(described: &[Described<'_>]) -> Result<RowSums> {
    let columns = Column::all(described)?;
    let rows = columns.first().map_or(0, |column| column.rows);
    if columns.iter().any(|column| column.rows != rows) {
        return Err(invalid("the columns of a block differ in their rows"));
    }
    let mut sums = RowSums::default();
    let mut hashes = [0; ROWS];
    for first in (0..rows).step_by(ROWS) {
        let hashes = &mut hashes[..ROWS.min(rows - first)];
        chain(&columns, first, hashes).ok_or_else(|| invalid("a value is not in its column"))?;
        sums.add(hashes);
    }
    Ok(sums)
}

/// The hashes of rows from the `first` on; None where a value is not in its column.
fn chain(columns: &[Column<'_>], first: usize, hashes: &mut [u64]) -> Option<()> {
    hashes.fill(SEED);
    for column in columns {
        column.chain_rows(first, hashes)?;
    }
    // Nulls leave a chain as it is, so it is told where they are.
    for group in columns.chunks(FLAGS) {
        let with_nulls: Vec<_> = group.iter().enumerate().filter(|(_, column)| !column.is_whole()).collect();
        for (row, hash) in (first..).zip(hashes.iter_mut()) {
            let null = |(bit, column): &(usize, &Column<'_>)| u64::from(!column.is_valid(row)) << bit;
            *hash = xxh64::long(with_nulls.iter().map(null).sum(), *hash);
        }
    }
    Some(())
}

/// Calls a function of the values, and of what hashes one of them, compiled for each type of value.
macro_rules! with_fixed {
    ($fixed:expr, |$values:ident, $step:ident| $body:expr) => {
        match $fixed {
            Fixed::Byte(values) => with_fixed!(values, byte, $values, $step, $body),
            Fixed::Short(values) => with_fixed!(values, short, $values, $step, $body),
            Fixed::Int(values) => with_fixed!(values, int, $values, $step, $body),
            Fixed::Long(values) => with_fixed!(values, long, $values, $step, $body),
            Fixed::Float(values) => with_fixed!(values, float, $values, $step, $body),
            Fixed::Double(values) => with_fixed!(values, double, $values, $step, $body),
            Fixed::ShortDecimal(values) => with_fixed!(values, short_decimal, $values, $step, $body),
            Fixed::LongDecimal(values) => with_fixed!(values, long_decimal, $values, $step, $body),
        }
    };
    ($of:ident, $hash:ident, $values:ident, $step:ident, $body:expr) => {{
        let ($values, $step) = ($of, $hash);
        $body
    }};
}

impl Column<'_> {
    /// Has the chains of rows from the `first` on go through this column.
    fn chain_rows(&self, first: usize, hashes: &mut [u64]) -> Option<()> {
        if let Values::Fixed(fixed) = self.values {
            return with_fixed!(fixed, |values, step| {
                let values = values.get(first..first + hashes.len())?;
                let each = hashes.iter_mut().zip(values);
                if self.is_whole() {
                    each.for_each(|(hash, value)| *hash = step(*value, *hash));
                } else {
                    for (row, (hash, value)) in (first..).zip(each) {
                        let next = step(*value, *hash);
                        *hash = if self.is_valid(row) { next } else { *hash };
                    }
                }
                Some(())
            });
        }
        if let Some(numbers) = self.numbers() {
            return with_fixed!(numbers, |values, step| self.chain_arrays(values, step, first, hashes));
        }
        hashes.iter_mut().enumerate().try_for_each(|(at, hash)| {
            *hash = self.chain_one(first + at, *hash)?;
            Some(())
        })
    }

    /// The numbers of a column of arrays, however deep, where no null is among them or among the arrays in arrays.
    fn numbers(&self) -> Option<Fixed<'_>> {
        let Values::List(_, elements) = &self.values else { return None };
        match elements.values {
            _ if !elements.is_whole() => None,
            Values::Fixed(fixed) => Some(fixed),
            _ => elements.numbers(),
        }
    }

    /// Where a row's numbers begin in a column that has them; a row ends where the next one begins.
    fn number_at(&self, row: usize) -> Option<usize> {
        match &self.values {
            Values::List(ends, elements) => elements.number_at(ends.at(row)?),
            _ => Some(row),
        }
    }

    /// Has the chains of rows go through the numbers of their arrays, some rows beside each other.
    fn chain_arrays<const WIDTH: usize>(
        &self,
        values: &[[u8; WIDTH]],
        step: impl Fn([u8; WIDTH], u64) -> u64 + Copy,
        first: usize,
        hashes: &mut [u64],
    ) -> Option<()> {
        let mut rows = 0..hashes.len();
        // The next row that has a number; None where one's are not there.
        let mut next = || {
            for at in rows.by_ref() {
                let row = first + at;
                if self.is_valid(row) {
                    let array = values.get(self.number_at(row)?..self.number_at(row + 1)?)?;
                    if !array.is_empty() {
                        return Some(Some((at, array)));
                    }
                }
            }
            Some(None)
        };
        let mut lanes: [(usize, &[[u8; WIDTH]]); LANES] = [(0, &[]); LANES];
        let mut is_full = true;
        while is_full {
            for lane in &mut lanes {
                if lane.1.is_empty() {
                    match next()? {
                        Some(row) => *lane = row,
                        None => is_full = false,
                    }
                }
            }
            if is_full {
                beside(&mut lanes, step, hashes);
            }
        }
        for (at, rest) in lanes {
            hashes[at] = rest.iter().fold(hashes[at], |hash, value| step(*value, hash));
        }
        Some(())
    }

    /// The hash behind a value, of the one before it.
    fn chain_one(&self, row: usize, hash: u64) -> Option<u64> {
        if !self.is_valid(row) {
            return Some(hash);
        }
        match &self.values {
            Values::Bool(bits) => Some(xxh64::int(u32::from(is_set(bits, row)), hash)),
            Values::Fixed(fixed) => with_fixed!(fixed, |values, step| Some(step(*values.get(row)?, hash))),
            Values::Bytes(ends, bytes) => Some(xxh64::bytes(bytes.get(ends.range(row)?)?, hash)),
            Values::List(ends, elements) => {
                ends.range(row)?.try_fold(hash, |hash, at| elements.chain_one(at, hash))
            }
            Values::Map(ends, entries) => chain_map(ends, entries, row, hash),
            Values::Struct(fields) => fields.iter().try_fold(hash, |hash, field| field.chain_one(row, hash)),
        }
    }
}

/// Takes as many numbers of each row as all have, which is one at least.
#[inline(always)]
fn beside<const WIDTH: usize>(
    lanes: &mut [(usize, &[[u8; WIDTH]]); LANES],
    step: impl Fn([u8; WIDTH], u64) -> u64,
    hashes: &mut [u64],
) {
    let count = lanes.iter().map(|(_, rest)| rest.len()).min().unwrap_or(0);
    let heads = lanes.map(|(_, rest)| &rest[..count]);
    let mut chains = lanes.map(|(at, _)| hashes[at]);
    for number in 0..count {
        for (chain, head) in chains.iter_mut().zip(&heads) {
            *chain = step(head[number], *chain);
        }
    }
    for ((at, rest), chain) in lanes.iter_mut().zip(chains) {
        hashes[*at] = chain;
        *rest = &rest[count..];
    }
}

/// A map's entries have no order: each has a hash of its own, and the chain goes through these from the least on.
fn chain_map(ends: &Ends<'_>, entries: &[Column<'_>; 2], row: usize, hash: u64) -> Option<u64> {
    let [keys, values] = entries;
    let entry = |at: usize| {
        let hash = values.chain_one(at, keys.chain_one(at, SEED)?)?;
        Some(xxh64::int(u32::from(!values.is_valid(at)), hash).cast_signed())
    };
    let mut hashes = ends.range(row)?.map(entry).collect::<Option<Vec<i64>>>()?;
    hashes.sort_unstable();
    Some(hashes.iter().fold(hash, |hash, entry| xxh64::long(entry.cast_unsigned(), hash)))
}

#[inline(always)]
fn byte(value: [u8; 1], hash: u64) -> u64 {
    xxh64::int(i32::from(i8::from_ne_bytes(value)).cast_unsigned(), hash)
}

#[inline(always)]
fn short(value: [u8; 2], hash: u64) -> u64 {
    xxh64::int(i32::from(i16::from_ne_bytes(value)).cast_unsigned(), hash)
}

#[inline(always)]
fn int(value: [u8; 4], hash: u64) -> u64 {
    xxh64::int(u32::from_ne_bytes(value), hash)
}

#[inline(always)]
fn long(value: [u8; 8], hash: u64) -> u64 {
    xxh64::long(u64::from_ne_bytes(value), hash)
}

/// -0.0 counts as 0.0, to which the sum makes it, and any NaN as Java's.
#[inline(always)]
fn float(value: [u8; 4], hash: u64) -> u64 {
    let value = f32::from_ne_bytes(value) + 0.0;
    xxh64::int(if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }, hash)
}

#[inline(always)]
fn double(value: [u8; 8], hash: u64) -> u64 {
    let value = f64::from_ne_bytes(value) + 0.0;
    xxh64::long(if value.is_nan() { 0x7ff8_0000_0000_0000 } else { value.to_bits() }, hash)
}

#[inline(always)]
fn short_decimal(value: [u8; 16], hash: u64) -> u64 {
    xxh64::long(u128::from_ne_bytes(value) as u64, hash)
}

/// As the bytes of Java's `BigInteger.toByteArray`: the highest first, and no more than the number needs.
#[inline(always)]
fn long_decimal(value: [u8; 16], hash: u64) -> u64 {
    let value = i128::from_ne_bytes(value);
    let same = if value < 0 { value.leading_ones() } else { value.leading_zeros() };
    let bytes = value.to_be_bytes();
    // The sign has a bit of them.
    xxh64::bytes(&bytes[(same as usize - 1) / 8..], hash)
}

#[cfg(test)]
mod tests;
