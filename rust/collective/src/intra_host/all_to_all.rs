//! All-to-all inside a host: a message from every rank to every other, of any length. Gather and scatter are cases of
//! it.
//!
//! What a rank sends, in the order of receivers, is one stream; each step publishes the next piece of it, and the
//! receivers take what is theirs. The first bytes of a slot say how long the messages are, so that receivers can find
//! theirs, check the length, and know the number of steps.
//!
//! Steps: the longest stream / 192 KiB, at least one. Moved: 2 (sent + received).

use std::ops::Range;

use phalanx_types::{Error, ErrorKind, Result};

use super::{LINE, LocalGroup};
use crate::call::Call;
use crate::wait::Watch;

/// Where in the input the message for each rank is, and where in the output the message from each rank goes.
pub(crate) struct Messages<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) sent: &'a [Range<usize>],
    pub(crate) output: &'a mut [u8],
    pub(crate) received: &'a [Range<usize>],
}

/// The message from a rank to itself is not moved here.
pub(crate) fn all_to_all(
    local: &mut LocalGroup,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    messages: Messages<'_>,
) -> Result<()> {
    let Messages { input, sent, output, received } = messages;
    let (me, ranks) = (local.local_rank(), local.ranks.len());
    let head = (ranks * 8).next_multiple_of(LINE);
    let room = local.steps.slot_bytes() - head;
    let lengths: Vec<usize> =
        sent.iter().enumerate().map(|(to, range)| if to == me { 0 } else { range.len() }).collect();
    let (mut round, mut rounds) = (0, 1);
    // Where this rank's message begins in each other's stream.
    let mut starts = vec![0; ranks];
    while round < rounds {
        let window = round * room..(round + 1) * room;
        if round == 0 {
            for (to, length) in lengths.iter().enumerate() {
                local.steps.write(to * 8, &(*length as u64).to_ne_bytes());
            }
        }
        let mut start = 0;
        for (length, from) in lengths.iter().zip(sent) {
            if let Some(common) = overlap(&window, start, *length) {
                let bytes = &input[from.start + common.start - start..from.start + common.end - start];
                local.steps.write(head + common.start - window.start, bytes);
            }
            start += length;
        }
        local.step(watch, begins.take())?;
        for from in (0..ranks).filter(|from| *from != me) {
            let theirs = local.steps.theirs(from);
            if round == 0 {
                let row: Vec<usize> = theirs.as_chunks::<8>().0[..ranks]
                    .iter()
                    .map(|length| u64::from_ne_bytes(*length) as usize)
                    .collect();
                starts[from] = row[..me].iter().sum();
                rounds = rounds.max(row.iter().sum::<usize>().div_ceil(room));
                same_length(local, from, row[me], received[from].len())?;
            }
            if let Some(common) = overlap(&window, starts[from], received[from].len()) {
                let at = received[from].start + common.start - starts[from];
                let bytes = &theirs[head + common.start - window.start..][..common.len()];
                output[at..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        if round == 0 {
            rounds = rounds.max(lengths.iter().sum::<usize>().div_ceil(room));
        }
        round += 1;
    }
    Ok(())
}

fn overlap(window: &Range<usize>, start: usize, length: usize) -> Option<Range<usize>> {
    let common = window.start.max(start)..window.end.min(start + length);
    (!common.is_empty()).then_some(common)
}

fn same_length(local: &LocalGroup, from: usize, sent: usize, expected: usize) -> Result<()> {
    if sent == expected {
        return Ok(());
    }
    let (from, me) = (local.ranks[from], local.ranks[local.local_rank()]);
    Err(Error::new(
        ErrorKind::Invalid,
        format!("rank {from} sends {sent} bytes to rank {me}, which expects {expected}"),
    ))
}
