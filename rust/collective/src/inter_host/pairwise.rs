//! All-reduce of long buffers in two steps: every rank gets its part of all buffers, reduces it, and sends the result
//! to all. This sends as many bytes as a ring. But one rank reduces each part, once, so 16-bit floating-point types are
//! rounded once (GROUP-57).
//!
//! Steps: 2 a piece of h MiB. Sent: 2 b (h - 1) / h.

use phalanx_types::Result;

use super::Channel;
use super::transport::{Incoming, Outgoing};
use crate::intra_host::part;
use crate::kernels::Combine;

const PART_BYTES: usize = 1 << 20;

/// Every rank's `buffer` becomes the reduction of all.
pub(crate) fn all_reduce(channel: &Channel<'_>, buffer: &mut [u8], combine: &Combine) -> Result<()> {
    buffer
        .chunks_mut(PART_BYTES * channel.ranks.len())
        .try_for_each(|piece| all_reduce_piece(channel, piece, combine))
}

fn all_reduce_piece(channel: &Channel<'_>, buffer: &mut [u8], combine: &Combine) -> Result<()> {
    let (hosts, me, bytes) = (channel.ranks.len(), channel.me, buffer.len());
    let mine = part(bytes, me, hosts);
    let others = || (0..hosts).filter(|position| *position != me);
    let mut theirs = vec![vec![0; mine.len()]; hosts - 1];
    let outgoing: Vec<Outgoing<'_>> = others()
        .map(|position| Outgoing {
            to: channel.ranks[position],
            bytes: &buffer[part(bytes, position, hosts)],
        })
        .collect();
    let mut incoming: Vec<Incoming<'_>> = others()
        .zip(&mut theirs)
        .map(|(position, bytes)| Incoming::new(channel.ranks[position], bytes))
        .collect();
    channel.transport.transfer(channel.watch, &outgoing, &mut incoming)?;
    let theirs: Vec<&[u8]> = theirs.iter().map(Vec::as_slice).collect();
    combine.apply(&mut buffer[mine.clone()], me, &theirs);
    let (before, rest) = buffer.split_at_mut(mine.start);
    let (result, after) = rest.split_at_mut(mine.len());
    let result = &*result;
    let outgoing: Vec<Outgoing<'_>> =
        others().map(|position| Outgoing { to: channel.ranks[position], bytes: result }).collect();
    let mut incoming = Vec::new();
    let (mut before, mut after) = (before, after);
    for position in others() {
        let length = part(bytes, position, hosts).len();
        let side = if position < me { &mut before } else { &mut after };
        let (bytes, rest) = std::mem::take(side).split_at_mut(length);
        *side = rest;
        incoming.push(Incoming::new(channel.ranks[position], bytes));
    }
    channel.transport.transfer(channel.watch, &outgoing, &mut incoming)
}
