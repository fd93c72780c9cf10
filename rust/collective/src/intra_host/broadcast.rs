//! Broadcast inside a host: the root publishes a piece a step, the others take it.
//!
//! Steps: b / 192 KiB, at least one. Moved: 2 b on every rank. The root writes the next piece while the others read.

use phalanx_types::Result;

use super::{LocalGroup, pieces};
use crate::call::Call;
use crate::wait::Watch;

/// Every rank's `buffer` becomes the root's. `root` is a local rank.
pub(crate) fn broadcast(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    buffer: &mut [u8],
    root: usize,
) -> Result<()> {
    if buffer.is_empty() {
        return local.step(watch, begins);
    }
    for piece in pieces(buffer.len(), local.steps.slot_bytes()) {
        let bytes = &mut buffer[piece];
        if local.local_rank() == root {
            local.steps.write(0, bytes);
        }
        local.step(watch, begins.take())?;
        if local.local_rank() != root {
            bytes.copy_from_slice(&local.steps.theirs(root)[..bytes.len()]);
        }
    }
    Ok(())
}
