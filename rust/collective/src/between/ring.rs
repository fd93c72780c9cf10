//! All-reduce of long buffers around a ring: parts travel from rank to rank and are added up, then travel once more as
//! results. Each rank only ever talks to its two neighbours.
//!
//! Steps: 2 (h - 1). Sent: 2 b (h - 1) / h, the least possible.

use phalanx_types::Result;

use super::{Lane, PIECE_BYTES};
use crate::host::part;
use crate::kernels::Combine;

/// Every rank's `buffer` becomes the reduction of all.
pub(crate) fn all_reduce(lane: &Lane<'_>, buffer: &mut [u8], combine: &Combine) -> Result<()> {
    let (hosts, me, bytes) = (lane.ranks.len(), lane.me, buffer.len());
    let (next, previous) = ((me + 1) % hosts, (me + hosts - 1) % hosts);
    // Parts may differ by a line: all ranks go by the longest, so that they agree on the number of messages.
    let longest = (0..hosts).map(|place| part(bytes, place, hosts).len()).max().unwrap_or(0);
    let mut arrived = vec![0; longest.min(PIECE_BYTES)];
    for step in 0..2 * (hosts - 1) {
        let sent = part(bytes, (me + 2 * hosts - step) % hosts, hosts);
        let received = part(bytes, (me + 2 * hosts - step - 1) % hosts, hosts);
        let is_reducing = step < hosts - 1;
        for at in (0..longest).step_by(PIECE_BYTES) {
            let piece = |range: &std::ops::Range<usize>| {
                (range.start + at).min(range.end)..(range.start + at + PIECE_BYTES).min(range.end)
            };
            let (sent, received) = (piece(&sent), piece(&received));
            let into = &mut arrived[..received.len()];
            lane.shift(next, &buffer[sent], previous, into)?;
            if is_reducing {
                // What arrives was added up first; the order is the same for everyone, as one rank computes it.
                combine.apply(&mut buffer[received], 1, &[into]);
            } else {
                buffer[received].copy_from_slice(into);
            }
        }
    }
    Ok(())
}
