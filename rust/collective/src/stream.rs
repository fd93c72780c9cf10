//! Writing what another processor reads next.
//!
//! An ordinary write first takes the line away from the processors that have read it. Where two processors share no cache,
//! which a hypervisor decides, and changes while programs run, that takes 20 ns a line, one after another: an all-reduce
//! of 1 MiB between two ranks takes 400 us there, of which 350 go into writing the slots (EPYC 9004). Writing past the
//! caches leaves nothing to take away: 70 to 90 us. Where they share one it only costs: 90 us instead of 55. So it is
//! tried, time and again.

use std::time::{Duration, Instant};

/// Shorter copies are as fast either way.
const SHORTEST: usize = 1 << 10;
/// One of so many copies begins with a trial: its ordinary writes are timed.
const TRY_EVERY: u32 = 64;
const TRIAL_BYTES: usize = 8 << 10;
/// Slower is to write past the caches. Shared caches take 2 to 6 ns a line, with the read from memory.
const SLOW: Duration = Duration::from_nanos(12);
const LINE: usize = 64;
/// So many trials in a row have to be fast: with more ranks than processors, what was read by a rank on the own processor
/// is, and to be wrong about the others costs four times, the other way round a half.
const FAST_TRIALS: u32 = 4;

/// How a rank writes into its slots.
#[derive(Debug, Default)]
pub(crate) struct SlotWriter {
    copies: u32,
    /// Trials until ordinary writes are taken to be fast.
    wary: u32,
}

impl SlotWriter {
    /// Copies `from` to `to`, which is as long: it is there for whoever sees what this thread stores next.
    pub(crate) fn copy(&mut self, to: &mut [u8], from: &[u8]) {
        assert_eq!(to.len(), from.len(), "copies are as long");
        let is_trial = to.len() >= SHORTEST && {
            self.copies = self.copies.wrapping_add(1);
            self.copies % TRY_EVERY == 1
        };
        let tried = if is_trial { to.len().min(TRIAL_BYTES) } else { 0 };
        let ((first, rest), (from_first, from_rest)) = (to.split_at_mut(tried), from.split_at(tried));
        if is_trial {
            let start = Instant::now();
            first.copy_from_slice(from_first);
            let is_slow = start.elapsed() > SLOW * (tried / LINE) as u32;
            self.wary = if is_slow { FAST_TRIALS } else { self.wary.saturating_sub(1) };
        }
        if self.wary > 0 && rest.len() >= SHORTEST {
            copy_past_caches(rest, from_rest);
        } else {
            rest.copy_from_slice(from_rest);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    // SAFETY: any bytes are a vector.
    let (head, body, tail) = unsafe { to.align_to_mut::<__m128i>() };
    let (first, rest) = from.split_at(head.len());
    let (middle, last) = rest.split_at(size_of_val(body));
    head.copy_from_slice(first);
    for (to, from) in body.iter_mut().zip(middle.as_chunks::<{ size_of::<__m128i>() }>().0) {
        // SAFETY: every x86-64 has SSE2; both are whole vectors, and `to` is aligned.
        unsafe { _mm_stream_si128(to, _mm_loadu_si128(from.as_ptr().cast())) };
    }
    tail.copy_from_slice(last);
    // SAFETY: every x86-64 has it. Later stores, such as that of a flag, are to come later: this kind has to be told.
    unsafe { _mm_sfence() };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn copy_past_caches(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_whole_wherever_they_begin_and_end_and_whichever_way_they_go() {
        let from: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
        for wary in [0, 2] {
            for (start, length) in [(0, 0), (1, 1_023), (0, 1_024), (3, 1_024), (16, 4_096), (7, 19_001)] {
                // The first is a trial, the second isn't.
                for copies in 0..2 {
                    let mut writer = SlotWriter { copies, wary };
                    let mut to = vec![255; 20_000];
                    writer.copy(&mut to[start..start + length], &from[..length]);
                    assert_eq!(to[start..start + length], from[..length]);
                    assert!(to[..start].iter().chain(&to[start + length..]).all(|byte| *byte == 255));
                }
            }
        }
    }
}
