//! All-reduce of long buffers around a ring. Parts travel from rank to rank and are added up. Then they travel once
//! more as results. Each rank talks only to its two neighbours.
//!
//! Steps: 2 (h - 1). Sent: 2 b (h - 1) / h, the least possible.

use phalanx_types::Result;

use super::Channel;
use crate::intra_host::part;
use crate::kernels::Combine;

/// Every rank's `buffer` becomes the reduction of all.
pub(crate) fn all_reduce(channel: &Channel<'_>, buffer: &mut [u8], combine: &Combine) -> Result<()> {
    let (hosts, me, bytes) = (channel.ranks.len(), channel.me, buffer.len());
    let (next, previous) = ((me + 1) % hosts, (me + hosts - 1) % hosts);
    for step in 0..2 * (hosts - 1) {
        let sent = part(bytes, (me + 2 * hosts - step) % hosts, hosts);
        let received = part(bytes, (me + 2 * hosts - step - 1) % hosts, hosts);
        // The two are different parts.
        let (low, high) = buffer.split_at_mut(sent.start.max(received.start));
        let (sent, received) = if sent.start < received.start {
            (&low[sent], &mut high[..received.len()])
        } else {
            (&high[..sent.len()], &mut low[received])
        };
        if step < hosts - 1 {
            // What arrives was added up first; the order is the same for everyone, as one rank computes it.
            channel.send_recv_combining(next, sent, previous, received, combine)?;
        } else {
            channel.send_recv(next, sent, previous, received)?;
        }
    }
    Ok(())
}
