//! Broadcast inside a host: the root publishes a piece a step, the others take it.
//!
//! Steps: b / 192 KiB, at least one. Moved: 2 b on every rank. The root writes the next piece while the others read.

use phalanx_types::Result;

use super::{Host, pieces};
use crate::call::Call;
use crate::wait::Watch;

/// Every rank's `buffer` becomes the root's. `root` is a place on the host.
pub(crate) fn broadcast(
    host: &mut Host,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    buffer: &mut [u8],
    root: usize,
) -> Result<()> {
    if buffer.is_empty() {
        return host.step(watch, begins);
    }
    for piece in pieces(buffer.len(), host.steps.slot_bytes()) {
        let bytes = &mut buffer[piece];
        if host.seat() == root {
            host.steps.write(0, bytes);
        }
        host.step(watch, begins.take())?;
        if host.seat() != root {
            bytes.copy_from_slice(&host.steps.theirs(root)[..bytes.len()]);
        }
    }
    Ok(())
}
