//! Collective operations inside a host, through shared memory: one file an algorithm, its cost in its header.
//!
//! All of them are sequences of steps. In a step every rank writes to its own slot, publishes it, waits until all have
//! published theirs, and reads what it needs from the others'. The next step uses another slot, so a step costs one
//! synchronisation, and data moves through memory that stays in the cache.
//!
//! Costs are given for n ranks and b bytes a rank: *steps*, and *moved*, the bytes that each rank reads and writes.
//! All ranks of a host must compute the same number of steps from the same call.

pub(crate) mod all_gather;
pub(crate) mod all_reduce;
pub(crate) mod all_to_all;
pub(crate) mod broadcast;
pub(crate) mod reduce;
pub(crate) mod reduce_scatter;

use std::ops::Range;

use phalanx_types::Result;

use crate::call::Call;
use crate::futex::wake;
use crate::shm::{Layout, Steps};
use crate::wait::{AwaitedRank, Watch, mismatch};

/// What one step moves for each rank: a slot of it, and as much of the buffer, stay in a second-level cache.
pub(crate) const PIECE_BYTES: usize = 128 << 10;
/// A line of the cache. Parts of a buffer begin at multiples of it, so that no two ranks write to one line.
pub(crate) const LINE: usize = 64;
/// A piece, and room for the results of the one before it.
const SLOT_BYTES: usize = PIECE_BYTES + PIECE_BYTES / 2;
/// All ranks' slots together. Two a rank would do (GROUP-28). With more, the lines of a slot have left the readers'
/// second-level caches when its owner writes them again, and needn't be called back from there: 64 KiB take 5.6 us with
/// 16, and 8.4 with 8 of twice the size (2 ranks, EPYC 9004). With more than this many they leave the third-level
/// cache, too, beside the buffers: 64 MiB take 23 ms with 4 times as much, and 18 (4 ranks on 2 processors).
const SLOTS_OF_ALL: usize = 32;
const LEAST_SLOTS: usize = 2;
const RING_BYTES: usize = 128 << 10;

/// How the memory of a host with so many ranks is laid out.
pub(crate) fn layout(ranks: usize) -> Layout {
    // A power of two: see `Layout`.
    let slots = 1 << (SLOTS_OF_ALL / ranks).max(LEAST_SLOTS).ilog2();
    Layout { ranks, slots, slot_bytes: SLOT_BYTES, ring_bytes: RING_BYTES }
}

/// This rank among those of its host.
pub(crate) struct LocalGroup {
    steps: Steps,
    ranks: Vec<usize>,
    scratch: Vec<u8>,
}

impl LocalGroup {
    pub(crate) fn new(steps: Steps, ranks: Vec<usize>) -> LocalGroup {
        LocalGroup { steps, ranks, scratch: Vec::new() }
    }

    /// Its index among them.
    pub(crate) fn local_rank(&self) -> usize {
        self.steps.me()
    }

    /// Publishes, and waits for all. `begins` is the call, in its first step: all must have made the same.
    pub(crate) fn step(&mut self, watch: &Watch<'_>, begins: Option<Call>) -> Result<()> {
        let LocalGroup { steps, ranks, .. } = self;
        if steps.publish(begins) {
            wake(steps.flag(steps.me()));
        }
        let step = steps.step();
        while let Some(missing) = steps.missing() {
            let flag = steps.flag(missing);
            let whom = || AwaitedRank { rank: ranks[missing], last_call: Some(flag.call(flag.value())) };
            watch.until(flag, |value| value.wrapping_sub(step) as i32 >= 0, &whom)?;
        }
        begins.map_or(Ok(()), |call| self.check_same_call(watch, call))
    }

    fn check_same_call(&self, watch: &Watch<'_>, mine: Call) -> Result<()> {
        for (local_rank, rank) in self.ranks.iter().enumerate() {
            let theirs = self.steps.flag(local_rank).call(self.steps.step());
            if theirs != mine {
                return Err(mismatch(*rank, theirs, watch.peers.me(), mine));
            }
        }
        Ok(())
    }
}

/// Part `part` of `parts` of so many bytes, at whole lines; the parts together are everything.
pub(crate) fn part(bytes: usize, part: usize, parts: usize) -> Range<usize> {
    let lines = bytes.div_ceil(LINE);
    let at = |part: usize| (lines * part / parts * LINE).min(bytes);
    at(part)..at(part + 1)
}

/// Pieces of so many bytes, none longer than `longest`.
fn pieces(bytes: usize, longest: usize) -> impl ExactSizeIterator<Item = Range<usize>> {
    let count = bytes.div_ceil(longest);
    (0..count).map(move |piece| piece * longest..((piece + 1) * longest).min(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_pieces_are_everything_once() {
        // Miri is slow.
        let longest = if cfg!(miri) { 5_000 } else { 1_000_003 };
        for bytes in [0, 1, 63, 64, 65, 1000, 4096, longest] {
            for parts in 1..10 {
                let ranges: Vec<_> = (0..parts).map(|one| part(bytes, one, parts)).collect();
                assert_eq!((ranges[0].start, ranges[parts - 1].end), (0, bytes));
                assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(ranges.iter().all(|range| range.is_empty() || range.start % LINE == 0));
            }
            let all: Vec<_> = pieces(bytes, 640).flatten().collect();
            assert!(all.into_iter().eq(0..bytes));
        }
    }
}
