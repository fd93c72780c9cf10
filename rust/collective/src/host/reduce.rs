//! Reduce inside a host: as the sliced all-reduce, but only the root takes the results.
//!
//! Steps: b / 128 KiB + 1. Moved: 3 b on the root, 3 b / n more than b elsewhere.

use phalanx_types::Result;

use super::all_reduce::combine_others;
use super::{Host, PIECE_BYTES, part, pieces};
use crate::call::Call;
use crate::kernels::Combine;
use crate::wait::Watch;

/// The root's `buffer` becomes the reduction of all; the others' stay as they are. `root` is a place on the host.
pub(crate) fn reduce(
    host: &mut Host,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    buffer: &mut [u8],
    combine: &Combine,
    root: usize,
) -> Result<()> {
    let (me, ranks) = (host.seat(), host.ranks.len());
    let mut scratch = std::mem::take(&mut host.scratch);
    let mut reduced = 0..0;
    let last = std::iter::once(buffer.len()..buffer.len());
    for piece in pieces(buffer.len(), PIECE_BYTES).chain(last) {
        let mine = part(piece.len(), me, ranks);
        for range in [0..mine.start, mine.end..piece.len()] {
            host.steps.write(range.start, &buffer[piece.start..][range]);
        }
        if me != root {
            host.steps.write(PIECE_BYTES, &scratch);
        }
        host.step(watch, begins.take())?;
        if me == root {
            for owner in (0..ranks).filter(|owner| *owner != me) {
                let result = part(reduced.len(), owner, ranks);
                let theirs = &host.steps.theirs(owner)[PIECE_BYTES..][..result.len()];
                buffer[reduced.start..][result].copy_from_slice(theirs);
            }
            combine_others(host, &mut buffer[piece.start..][mine.clone()], mine.start, combine);
        } else {
            scratch.clear();
            scratch.extend_from_slice(&buffer[piece.start..][mine.clone()]);
            combine_others(host, &mut scratch, mine.start, combine);
        }
        reduced = piece;
    }
    host.scratch = scratch;
    Ok(())
}
