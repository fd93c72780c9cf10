//! Reduce inside a host: like the sliced all-reduce, but only the root takes the results.
//!
//! Steps: b / 128 KiB + 1. Moved: 3 b on the root, 3 b / n more than b elsewhere.

use phalanx_types::Result;

use super::all_reduce::{combine_others, write_slices_of_others};
use super::{LocalGroup, PIECE_BYTES, part, pieces};
use crate::call::Call;
use crate::kernels::Combine;
use crate::wait::Watch;

/// The root's `buffer` becomes the reduction of all; the others' stay as they are. `root` is a local rank.
pub(crate) fn reduce(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    buffer: &mut [u8],
    combine: &Combine,
    root: usize,
) -> Result<()> {
    let (me, ranks) = (local.local_rank(), local.ranks.len());
    let mut scratch = std::mem::take(&mut local.scratch);
    let mut reduced = 0..0;
    let last = std::iter::once(buffer.len()..buffer.len());
    for piece in pieces(buffer.len(), PIECE_BYTES).chain(last) {
        let mine = write_slices_of_others(local, &buffer[piece.clone()]);
        if me != root {
            local.steps.write(PIECE_BYTES, &scratch);
        }
        local.step(watch, begins.take())?;
        if me == root {
            for owner in (0..ranks).filter(|owner| *owner != me) {
                let result = part(reduced.len(), owner, ranks);
                let theirs = &local.steps.theirs(owner)[PIECE_BYTES..][..result.len()];
                buffer[reduced.start..][result].copy_from_slice(theirs);
            }
            combine_others(local, &mut buffer[piece.start..][mine.clone()], mine.start, combine);
        } else {
            scratch.clear();
            scratch.extend_from_slice(&buffer[piece.start..][mine.clone()]);
            combine_others(local, &mut scratch, mine.start, combine);
        }
        reduced = piece;
    }
    local.scratch = scratch;
    Ok(())
}
