//! All-gather inside a host: in each step every rank publishes a piece of its part, and takes all others'.
//!
//! Steps: the longest part / 192 KiB, at least one. Moved, for parts of b: 2 b n.

use std::ops::Range;

use phalanx_types::Result;

use super::LocalGroup;
use crate::call::Call;
use crate::wait::Watch;

/// Every rank has `parts[its local rank]` of `buffer` and gets all the others.
pub(crate) fn all_gather(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    buffer: &mut [u8],
    parts: &[Range<usize>],
) -> Result<()> {
    let (me, longest) = (local.local_rank(), local.steps.slot_bytes());
    let rounds = parts.iter().map(|part| part.len().div_ceil(longest)).max().unwrap_or(0).max(1);
    for round in 0..rounds {
        let piece = |part: &Range<usize>| {
            (part.start + round * longest).min(part.end)..(part.start + (round + 1) * longest).min(part.end)
        };
        let mine = &buffer[piece(&parts[me])];
        local.steps.write(0, mine);
        local.step(watch, begins.take())?;
        for (owner, part) in parts.iter().enumerate().filter(|(owner, _)| *owner != me) {
            let to = &mut buffer[piece(part)];
            to.copy_from_slice(&local.steps.theirs(owner)[..to.len()]);
        }
    }
    Ok(())
}
