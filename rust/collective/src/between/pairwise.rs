//! All-reduce of long buffers in two steps: every rank gets its part of all buffers, reduces it, and sends the result
//! to all. As many bytes as around a ring, but each part is reduced once, by one rank: what short floating-point types
//! need to be rounded once (KER-2).
//!
//! Steps: 2 a piece of h MiB. Sent: 2 b (h - 1) / h.

use phalanx_types::Result;

use super::Lane;
use super::transfer::{Incoming, Outgoing};
use crate::host::part;
use crate::kernels::Combine;

const PART_BYTES: usize = 1 << 20;

/// Every rank's `buffer` becomes the reduction of all.
pub(crate) fn all_reduce(lane: &Lane<'_>, buffer: &mut [u8], combine: &Combine) -> Result<()> {
    buffer
        .chunks_mut(PART_BYTES * lane.ranks.len())
        .try_for_each(|piece| all_reduce_piece(lane, piece, combine))
}

fn all_reduce_piece(lane: &Lane<'_>, buffer: &mut [u8], combine: &Combine) -> Result<()> {
    let (hosts, me, bytes) = (lane.ranks.len(), lane.me, buffer.len());
    let mine = part(bytes, me, hosts);
    let others = || (0..hosts).filter(|place| *place != me);
    let mut theirs = vec![vec![0; mine.len()]; hosts - 1];
    let outgoing: Vec<Outgoing<'_>> = others()
        .map(|place| Outgoing { to: lane.ranks[place], bytes: &buffer[part(bytes, place, hosts)] })
        .collect();
    let mut incoming: Vec<Incoming<'_>> =
        others().zip(&mut theirs).map(|(place, bytes)| Incoming::new(lane.ranks[place], bytes)).collect();
    lane.wires.transfer(lane.watch, lane.call, &outgoing, &mut incoming)?;
    let theirs: Vec<&[u8]> = theirs.iter().map(Vec::as_slice).collect();
    combine.apply(&mut buffer[mine.clone()], me, &theirs);
    let (before, rest) = buffer.split_at_mut(mine.start);
    let (result, after) = rest.split_at_mut(mine.len());
    let result = &*result;
    let outgoing: Vec<Outgoing<'_>> =
        others().map(|place| Outgoing { to: lane.ranks[place], bytes: result }).collect();
    let mut incoming = Vec::new();
    let (mut before, mut after) = (before, after);
    for place in others() {
        let length = part(bytes, place, hosts).len();
        let side = if place < me { &mut before } else { &mut after };
        let (bytes, rest) = std::mem::take(side).split_at_mut(length);
        *side = rest;
        incoming.push(Incoming::new(lane.ranks[place], bytes));
    }
    lane.wires.transfer(lane.watch, lane.call, &outgoing, &mut incoming)
}
