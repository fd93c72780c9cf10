//! Memory that Python's objects own.

use std::ops::Range;

use pyo3::prelude::*;

/// Memory of a tensor or an array, its address and bytes: what Python says of it is true until the call is done,
/// because the work, or the caller who waits, keeps the tensor.
#[derive(Clone, Copy, FromPyObject)]
pub(crate) struct Memory(usize, usize);

impl Memory {
    pub(crate) fn new(address: usize, bytes: usize) -> Memory {
        Memory(address, bytes)
    }

    pub(crate) fn range(self) -> Range<usize> {
        self.0..self.0 + self.1
    }

    pub(crate) fn overlaps(self, other: Memory) -> bool {
        let (a, b) = (self.range(), other.range());
        !a.is_empty() && !b.is_empty() && a.start < b.end && b.start < a.end
    }

    /// # Safety
    /// The memory is that of a tensor or an array that lives on for `'a`, and nobody writes it meanwhile.
    pub(crate) unsafe fn read<'a>(self) -> &'a [u8] {
        if self.1 == 0 {
            return &[]; // an empty one has no address
        }
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts(self.0 as *const u8, self.1) }
    }

    /// # Safety
    /// The memory is that of a tensor or an array that lives on for `'a`, and nobody reads or writes it meanwhile.
    pub(crate) unsafe fn write<'a>(self) -> &'a mut [u8] {
        if self.1 == 0 {
            return &mut [];
        }
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts_mut(self.0 as *mut u8, self.1) }
    }
}

/// Memory that is read, all of which stays as it is.
pub(crate) struct Sources(Vec<Range<usize>>);

impl Sources {
    pub(crate) fn new(memory: impl Iterator<Item = Memory>) -> Sources {
        let mut ranges: Vec<_> = memory.map(Memory::range).filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
        Sources(ranges)
    }

    pub(crate) fn overlap(&self, memory: Memory) -> bool {
        let range = memory.range();
        let before = self.0.partition_point(|source| source.start < range.end);
        !range.is_empty() && self.0[..before].last().is_some_and(|source| source.end > range.start)
    }
}
