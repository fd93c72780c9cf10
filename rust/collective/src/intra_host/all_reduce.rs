//! All-reduce inside a host.
//!
//! *Direct*, for short buffers, and for two ranks if the type is cheap to compute with: every rank publishes its
//! buffer, and every rank reduces all of them. Steps: b / 128 KiB. Moved: (n + 3) b, of which (n - 1) b from other
//! processors' caches.
//!
//! *Sliced*, for long buffers of more ranks: of each piece, rank r reduces the r-th slice of all buffers, and takes the
//! results of the other slices from their owners. Results are published together with the next piece, so a piece costs
//! one step and not two. Steps: b / 128 KiB + 1. Moved: about 6 b (n - 1) / n, of which 2 b (n - 1) / n from other
//! processors' caches. For two ranks that is as much as direct, but with one step more.
//!
//! Both read b from memory and write b to it; all else stays in the caches.

use std::ops::Range;

use phalanx_types::Result;

use super::{LocalGroup, PIECE_BYTES, part, pieces};
use crate::call::Call;
use crate::kernels::Combine;
use crate::shm::nontemporal::prefetch;
use crate::wait::Watch;

/// Up to here one synchronisation less is worth more than n times less to reduce.
fn longest_direct(ranks: usize, combine: &Combine) -> usize {
    match ranks {
        2 if combine.is_costly() => 64 << 10,
        2 => usize::MAX,
        3..=4 => 16 << 10,
        _ => 4 << 10,
    }
}

/// Longer buffers come from memory. Then the next piece is published while this one is reduced, in turns, and the
/// memory is asked a turn ahead, so that one waits for it and the other for other processors' caches at the same time.
/// 2 ranks, 64 MiB, by turns: 6.7 ms with turns and 7.5 without; in another run 6.4 when also asked ahead and 7.7 when
/// not. Up to here it costs: with turns 1 MiB takes 57 us instead of 51.
const LARGEST_CACHED: usize = 32 << 20;
const TURN_BYTES: usize = 4 << 10;

/// Every rank's `buffer` becomes the reduction of all.
pub(crate) fn all_reduce(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    begins: Option<Call>,
    buffer: &mut [u8],
    combine: &Combine,
) -> Result<()> {
    if buffer.len() <= longest_direct(local.ranks.len(), combine) {
        direct(local, watch, begins, buffer, combine)
    } else {
        sliced(local, watch, begins, buffer, combine)
    }
}

fn direct(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    buffer: &mut [u8],
    combine: &Combine,
) -> Result<()> {
    if buffer.is_empty() {
        return local.step(watch, begins);
    }
    let length = buffer.len();
    let is_cached = length <= LARGEST_CACHED;
    let block = if is_cached { PIECE_BYTES } else { TURN_BYTES };
    local.steps.write(0, &buffer[..length.min(PIECE_BYTES)]);
    for piece in pieces(length, PIECE_BYTES) {
        local.step(watch, begins.take())?;
        for at in (0..piece.len()).step_by(block) {
            let here = piece.start + at..(piece.start + at + block).min(piece.end);
            let ahead = |turns: usize| {
                let from = piece.end + at + turns * block;
                from.min(length)..(from + block).min(length)
            };
            if !is_cached {
                prefetch(&buffer[ahead(1)]);
            }
            // GROUP-56: the same order on all ranks, so the same bits.
            combine_others(local, &mut buffer[here], at, combine);
            local.steps.write(at, &buffer[ahead(0)]);
        }
    }
    Ok(())
}

/// Combines `own` with the same bytes, from `at`, of all other slots, in the order of ranks.
pub(super) fn combine_others(local: &LocalGroup, own: &mut [u8], at: usize, combine: &Combine) {
    let (me, ranks, length) = (local.local_rank(), local.ranks.len(), own.len());
    if let (0 | 1, 2) = (me, ranks) {
        combine.apply(own, me, &[&local.steps.theirs(1 - me)[at..][..length]]);
        return;
    }
    let others: Vec<&[u8]> =
        (0..ranks).filter(|rank| *rank != me).map(|rank| &local.steps.theirs(rank)[at..][..length]).collect();
    combine.apply(own, me, &others);
}

/// Writes of a piece what the others reduce; the slice that this rank reduces itself.
pub(super) fn write_slices_of_others(local: &mut LocalGroup, piece: &[u8]) -> Range<usize> {
    let mine = part(piece.len(), local.local_rank(), local.ranks.len());
    for range in [0..mine.start, mine.end..piece.len()] {
        local.steps.write(range.start, &piece[range]);
    }
    mine
}

fn sliced(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    buffer: &mut [u8],
    combine: &Combine,
) -> Result<()> {
    let (me, ranks) = (local.local_rank(), local.ranks.len());
    // The piece before the one that is being published: where it is in the buffer.
    let mut reduced = 0..0;
    let last = std::iter::once(buffer.len()..buffer.len());
    for piece in pieces(buffer.len(), PIECE_BYTES).chain(last) {
        let mine = write_slices_of_others(local, &buffer[piece.clone()]);
        let result = part(reduced.len(), me, ranks);
        local.steps.write(PIECE_BYTES, &buffer[reduced.start..][result]);
        local.step(watch, begins.take())?;
        for owner in (0..ranks).filter(|owner| *owner != me) {
            let result = part(reduced.len(), owner, ranks);
            let theirs = &local.steps.theirs(owner)[PIECE_BYTES..][..result.len()];
            buffer[reduced.start..][result].copy_from_slice(theirs);
        }
        combine_others(local, &mut buffer[piece.start..][mine.clone()], mine.start, combine);
        reduced = piece;
    }
    Ok(())
}
