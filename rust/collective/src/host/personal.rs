//! Personalised exchange inside a host: a message from every rank to every other, of any length. All-to-all, gather
//! and scatter are cases of it.
//!
//! What a rank sends, in the order of receivers, is one stream; each step publishes the next piece of it, and the
//! receivers take what is theirs. The first bytes of a slot say how long the messages are, so that receivers can find
//! theirs, check the length, and know the number of steps.
//!
//! Steps: the longest stream / 192 KiB, at least one. Moved: 2 (sent + received).

use std::ops::Range;

use phalanx_types::{Error, ErrorKind, Result};

use super::{Host, LINE};
use crate::call::Call;
use crate::wait::Watch;

/// Where in the input the message for each place is, and where in the output the message from each place goes.
pub(crate) struct Messages<'a> {
    pub(crate) input: &'a [u8],
    pub(crate) sent: &'a [Range<usize>],
    pub(crate) output: &'a mut [u8],
    pub(crate) received: &'a [Range<usize>],
}

/// The message from a rank to itself is not moved here.
pub(crate) fn exchange(
    host: &mut Host,
    watch: &Watch<'_>,
    mut begins: Option<Call>,
    messages: Messages<'_>,
) -> Result<()> {
    let Messages { input, sent, output, received } = messages;
    let (me, ranks) = (host.seat(), host.ranks.len());
    let head = (ranks * 8).next_multiple_of(LINE);
    let room = host.steps.slot_bytes() - head;
    let lengths: Vec<usize> =
        sent.iter().enumerate().map(|(to, range)| if to == me { 0 } else { range.len() }).collect();
    let (mut round, mut rounds) = (0, 1);
    // Where this rank's message begins in each other's stream.
    let mut starts = vec![0; ranks];
    while round < rounds {
        let window = round * room..(round + 1) * room;
        if round == 0 {
            for (place, length) in lengths.iter().enumerate() {
                host.steps.write(place * 8, &(*length as u64).to_ne_bytes());
            }
        }
        let mut start = 0;
        for (length, from) in lengths.iter().zip(sent) {
            if let Some(common) = overlap(&window, start, *length) {
                let bytes = &input[from.start + common.start - start..from.start + common.end - start];
                host.steps.write(head + common.start - window.start, bytes);
            }
            start += length;
        }
        host.step(watch, begins.take())?;
        for from in (0..ranks).filter(|from| *from != me) {
            let theirs = host.steps.theirs(from);
            if round == 0 {
                let row: Vec<usize> = theirs.as_chunks::<8>().0[..ranks]
                    .iter()
                    .map(|length| u64::from_ne_bytes(*length) as usize)
                    .collect();
                starts[from] = row[..me].iter().sum();
                rounds = rounds.max(row.iter().sum::<usize>().div_ceil(room));
                same_length(host, from, row[me], received[from].len())?;
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

fn same_length(host: &Host, from: usize, sent: usize, expected: usize) -> Result<()> {
    if sent == expected {
        return Ok(());
    }
    let (from, me) = (host.ranks[from], host.ranks[host.seat()]);
    Err(Error::new(
        ErrorKind::Invalid,
        format!("rank {from} sends {sent} bytes to rank {me}, which expects {expected}"),
    ))
}
