//! All-reduce of short buffers by recursive doubling: in each step a rank exchanges all it has with a partner twice
//! as far away.
//!
//! Steps: log2 h, and 2 more if h is no power of two. Sent: b log2 h.

use phalanx_types::Result;

use super::Channel;
use crate::kernels::Combine;

/// Every rank's `buffer` becomes the reduction of all.
pub(crate) fn all_reduce(channel: &Channel<'_>, buffer: &mut [u8], combine: &Combine) -> Result<()> {
    let hosts = channel.ranks.len();
    let power = 1 << hosts.ilog2();
    let extra = hosts - power;
    let mut theirs = vec![0; buffer.len()];
    // The first 2 * extra positions go in pairs: one reduces for both.
    if channel.me < 2 * extra && channel.me % 2 == 1 {
        channel.send(channel.me - 1, buffer)?;
        return channel.recv(channel.me - 1, buffer);
    }
    if channel.me < 2 * extra {
        channel.recv(channel.me + 1, &mut theirs)?;
        combine.apply(buffer, 0, &[&theirs]);
    }
    let position = |number: usize| if number < extra { 2 * number } else { number + extra };
    let number = if channel.me < 2 * extra { channel.me / 2 } else { channel.me - extra };
    let mut distance = 1;
    while distance < power {
        let partner = number ^ distance;
        channel.send_recv(position(partner), buffer, position(partner), &mut theirs)?;
        // GROUP-56: both partners combine in the same order.
        combine.apply(buffer, usize::from(number > partner), &[&theirs]);
        distance *= 2;
    }
    if channel.me < 2 * extra {
        channel.send(channel.me + 1, buffer)?;
    }
    Ok(())
}
