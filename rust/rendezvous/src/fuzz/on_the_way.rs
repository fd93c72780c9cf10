//! Two ends of a connection in memory, and somebody between them who does what a script says.
//!
//! A script is steps of a header byte, a length byte, and so many bytes. The header's lowest bit names an end, the next
//! two what happens:
//! - 0: what this end has queued goes to the other one, in pieces of as many bytes as the first byte says, or in one.
//!   The others change it on the way, three by three: a position (two bytes) and what is XORed there. Bit 3 of the
//!   header has it arrive twice, bit 4 never.
//! - 1: this end hears the bytes from somebody else. Bit 5 repeats them 64 times, so that a short script finds limits.
//! - 2: this end says the bytes, if it may by now. Bit 5 as above.
//! - 3: this end does what it has to do once, its end for one.
//!
//! rustls, where it is built with assertions, asserts that who has said its end hears nothing broken. Our profiles
//! build it without. cargo-fuzz builds everything with: there nothing is broken for such an end.

/// One end. Who is gone only has its last words to say.
pub(crate) trait End {
    /// Takes what comes from the wire.
    fn hear(&mut self, came: &[u8]);
    /// Queues `bytes` for who is at the other end, if this one may talk by now.
    fn say(&mut self, bytes: &[u8]);
    /// Does what is done once.
    fn act(&mut self);
    /// Whether it has said its end.
    fn is_over(&self) -> bool {
        false
    }
    /// What is to go over the wire.
    fn take(&mut self) -> Vec<u8>;
}

/// Plays a script; whether everything went over the wire as it was sent. If so, all of it has arrived.
pub(crate) fn play(script: &[u8], ends: &mut [&mut dyn End; 2]) -> bool {
    // Whether an end has heard anything else than what was sent to it, or less.
    let (mut rest, mut touched) = (script, [false; 2]);
    while let [head, length, tail @ ..] = rest {
        let (bytes, others) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = others;
        let end = usize::from(head & 1);
        let times = if head & 32 == 0 { 1 } else { 64 };
        match (head >> 1) & 3 {
            0 => touched[1 - end] |= carry(ends, end, *head, bytes),
            1 if may_break(ends[end]) => {
                touched[end] |= !bytes.is_empty();
                ends[end].hear(&bytes.repeat(times));
            }
            2 => ends[end].say(&bytes.repeat(times)),
            3 if !touched[end] || !cfg!(fuzzing) => ends[end].act(),
            _ => {}
        }
    }
    let is_untouched = touched == [false; 2];
    let mut silent = 0;
    while is_untouched && silent < 2 {
        for end in [0, 1] {
            let told = ends[end].take();
            silent = if told.is_empty() { silent + 1 } else { 0 };
            hear(ends[1 - end], &told, 0);
        }
    }
    is_untouched
}

fn may_break(end: &dyn End) -> bool {
    !cfg!(fuzzing) || !end.is_over()
}

/// Whether anything else arrives than what was sent, or less.
fn carry(ends: &mut [&mut dyn End; 2], from: usize, mut head: u8, how: &[u8]) -> bool {
    let sent = ends[from].take();
    let mut told = sent.clone();
    let (piece, mut changes) = how.split_first().unwrap_or((&0, &[]));
    if !may_break(ends[1 - from]) {
        (head, changes) = (0, &[]);
    }
    for change in changes.as_chunks::<3>().0 {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]]));
        if let Some(at) = at.checked_rem(told.len()) {
            told[at] ^= change[2];
        }
    }
    let times = if head & 16 != 0 { 0 } else { 1 + usize::from(head & 8 != 0) };
    for _ in 0..times {
        hear(ends[1 - from], &told, usize::from(*piece));
    }
    told != sent || (times != 1 && !sent.is_empty())
}

fn hear(end: &mut dyn End, told: &[u8], piece: usize) {
    let piece = if piece == 0 { told.len() } else { piece };
    told.chunks(piece.max(1)).for_each(|piece| end.hear(piece));
}
