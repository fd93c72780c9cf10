//! Reduce-scatter inside a host: in each step every rank publishes a piece of each part, and reduces the pieces of its
//! own part.
//!
//! Steps: the longest part * n / 192 KiB, at least one. Moved, for parts of b / n: 3 b.

use std::ops::Range;

use phalanx_types::Result;

use super::all_reduce::combine_others;
use super::{LINE, LocalGroup};
use crate::call::Call;
use crate::kernels::Combine;
use crate::wait::Watch;

/// Where the input is, and where this rank's part of the result goes.
pub(crate) enum Buffers<'a> {
    /// The part's place in the input.
    InPlace(&'a mut [u8]),
    /// A buffer as long as the part.
    Apart(&'a [u8], &'a mut [u8]),
}

impl Buffers<'_> {
    fn input(&self) -> &[u8] {
        match self {
            Buffers::InPlace(buffer) => buffer,
            Buffers::Apart(input, _) => input,
        }
    }

    /// This rank's own piece, ready to be combined with the others'. `part` is where its part is in the input.
    fn own(&mut self, part: &Range<usize>, piece: Range<usize>) -> &mut [u8] {
        match self {
            Buffers::InPlace(buffer) => &mut buffer[piece],
            Buffers::Apart(input, output) => {
                let own = &mut output[piece.start - part.start..piece.end - part.start];
                own.copy_from_slice(&input[piece]);
                own
            }
        }
    }
}

/// Every rank gets `parts[its local rank]` of the reduction.
pub(crate) fn reduce_scatter(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    mut buffers: Buffers<'_>,
    parts: &[Range<usize>],
    combine: &Combine,
) -> Result<()> {
    let me = local.local_rank();
    let quota = local.steps.slot_bytes() / parts.len() / LINE * LINE;
    let rounds = parts.iter().map(|part| part.len().div_ceil(quota)).max().unwrap_or(0).max(1);
    for round in 0..rounds {
        let piece = |part: &Range<usize>| {
            (part.start + round * quota).min(part.end)..(part.start + (round + 1) * quota).min(part.end)
        };
        for (owner, part) in parts.iter().enumerate().filter(|(owner, _)| *owner != me) {
            local.steps.write(owner * quota, &buffers.input()[piece(part)]);
        }
        local.step(watch, begins.take())?;
        let own = buffers.own(&parts[me], piece(&parts[me]));
        combine_others(local, own, me * quota, combine);
    }
    Ok(())
}
