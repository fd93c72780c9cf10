//! Writing what another processor reads next, and reading what this one needs soon.
//!
//! An ordinary write first takes the line away from the processors that have read it. If two processors share no cache,
//! this takes 20 ns a line, one line after another. (A hypervisor decides which processors share a cache, and changes
//! that while programs run.) An all-reduce of 1 MiB between two ranks takes 400 us there, of which 350 go into writing
//! the slots (EPYC 9004). Writing past the caches (non-temporal stores) leaves nothing to take away: 70 to 90 us. If
//! the processors do share a cache, it only costs: 90 us instead of 55. So each rank tries time and again which way is
//! faster: see [`SlotWriter`].

use std::hint::black_box;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Shorter copies are as fast either way.
const SHORTEST: usize = 1 << 10;
/// How much of a copy is timed.
const TRIAL_BYTES: usize = 2 << 10;
const LINE: usize = 64;
/// A line that takes longer was with a processor that shares no cache with this one. Otherwise it takes 1 to 5 ns.
const SLOW: Duration = Duration::from_nanos(12);
/// A line that takes even longer says nothing: this processor was away.
const ABSURD: Duration = Duration::from_nanos(100);
/// A slow trial counts so much more than a fast one: with more ranks than processors, some are always fast, namely
/// those of lines that were read by a rank on the own processor; and to write to the others in the ordinary way costs
/// four times, past the caches half as much again.
const SLOW_COUNTS: u32 = 3;
/// From this sum on, writes go past the caches. A few slow trials happen everywhere.
const ENOUGH: u32 = 12;
/// So many trials later the ordinary way gets another chance.
const NON_TEMPORAL_TRIALS: u32 = 512;
/// Before it is timed, the lines of all trials have to be in caches again.
const UNTIMED_TRIALS: u32 = 3;

/// How a rank writes into its slots: in the ordinary way, until trials of it have been slow, and then past the caches
/// for a while.
///
/// A *trial* is a write to a place to which each write is one: when the ordinary way is timed, its lines were last
/// written in that way. (After writes past the caches they come from memory, which is as slow everywhere.)
#[derive(Debug)]
pub(crate) struct SlotWriter {
    way: Way,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Ordinary {
        /// Trials that aren't timed yet.
        untimed: u32,
        /// Slow trials, less the fast ones.
        slow: u32,
    },
    NonTemporal {
        /// Trials that are left until the ordinary way is tried again.
        trials: u32,
    },
}

impl Default for SlotWriter {
    fn default() -> SlotWriter {
        // The first writes meet pages that aren't there yet.
        SlotWriter { way: Way::Ordinary { untimed: UNTIMED_TRIALS, slow: 0 } }
    }
}

impl SlotWriter {
    /// Copies `from` to `to`, which is as long: it is there for whoever sees what this thread stores next.
    pub(crate) fn copy(&mut self, to: &mut [u8], from: &[u8], is_trial: bool) {
        assert_eq!(to.len(), from.len(), "copies are as long");
        if to.len() < SHORTEST {
            return to.copy_from_slice(from);
        }
        let tried = if is_trial { self.try_out(to, from) } else { 0 };
        match self.way {
            Way::Ordinary { .. } => to[tried..].copy_from_slice(&from[tried..]),
            Way::NonTemporal { .. } => copy_nontemporal(&mut to[tried..], &from[tried..]),
        }
    }

    /// Finds out which way is the faster one now; how many bytes it has copied for that.
    fn try_out(&mut self, to: &mut [u8], from: &[u8]) -> usize {
        let mut tried = 0;
        self.way = match self.way {
            Way::Ordinary { untimed: 0, slow } => {
                tried = to.len().min(TRIAL_BYTES);
                Self::weigh(slow, time_a_line(&mut to[..tried], &from[..tried]))
            }
            Way::Ordinary { untimed, slow } => Way::Ordinary { untimed: untimed - 1, slow },
            Way::NonTemporal { trials: 0 } => SlotWriter::default().way,
            Way::NonTemporal { trials } => Way::NonTemporal { trials: trials - 1 },
        };
        tried
    }

    /// What follows from another trial of the ordinary way, in which a line took so long.
    fn weigh(slow: u32, line: Duration) -> Way {
        let slow = match line {
            _ if line > ABSURD => slow,
            _ if line > SLOW => slow + SLOW_COUNTS,
            _ => slow.saturating_sub(1),
        };
        if slow >= ENOUGH {
            Way::NonTemporal { trials: NON_TEMPORAL_TRIALS }
        } else {
            Way::Ordinary { untimed: 0, slow }
        }
    }
}

/// Copies in the ordinary way; how long it takes a line.
fn time_a_line(to: &mut [u8], from: &[u8]) -> Duration {
    // Brings the source into the cache: how far away that is isn't the question.
    black_box(from.iter().step_by(LINE).fold(0, |all, byte| all ^ byte));
    // Writes only queue up where they are made. Here they have to arrive: first those of before, then the timed ones.
    fence(Ordering::SeqCst);
    let start = Instant::now();
    to.copy_from_slice(from);
    fence(Ordering::SeqCst);
    start.elapsed() / to.len().div_ceil(LINE) as u32
}

/// Asks for bytes that will be read soon, and doesn't wait for them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn prefetch(bytes: &[u8]) {
    use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};

    for line in bytes.chunks(LINE) {
        // SAFETY: every x86-64 has SSE. It is a hint, and reads nothing that the program sees.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn prefetch(_bytes: &[u8]) {}

#[cfg(all(target_arch = "x86_64", not(miri)))]
fn copy_nontemporal(to: &mut [u8], from: &[u8]) {
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
fn copy_nontemporal(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDINARY: Way = Way::Ordinary { untimed: 0, slow: 0 };
    const NON_TEMPORAL: Way = Way::NonTemporal { trials: NON_TEMPORAL_TRIALS };

    #[test]
    fn copies_are_whole_wherever_they_begin_and_end_and_whichever_way_they_go() {
        let from: Vec<u8> = (0..20_000u32).map(|at| (at % 251) as u8).collect();
        for way in [ORDINARY, NON_TEMPORAL] {
            for (start, length) in [(0, 0), (1, 1_023), (0, 1_024), (3, 1_024), (16, 4_096), (7, 19_001)] {
                for is_trial in [false, true] {
                    let mut to = vec![255; 20_000];
                    SlotWriter { way }.copy(&mut to[start..start + length], &from[..length], is_trial);
                    assert_eq!(to[start..start + length], from[..length]);
                    assert!(to[..start].iter().chain(&to[start + length..]).all(|byte| *byte == 255));
                }
            }
        }
    }

    /// The way after trials of so many nanoseconds a line.
    fn after(trials: impl IntoIterator<Item = u64>) -> Way {
        trials.into_iter().fold(ORDINARY, |way, line| match way {
            Way::Ordinary { slow, .. } => SlotWriter::weigh(slow, Duration::from_nanos(line)),
            past => past,
        })
    }

    #[test]
    fn writes_go_past_the_caches_where_the_ordinary_way_is_slow_again_and_again() {
        assert_eq!(after([20; 4]), NON_TEMPORAL);
        assert_eq!(
            after([2, 20].repeat(6)),
            NON_TEMPORAL,
            "where every other reader is on the own processor"
        );
        assert_eq!(after([20, 2, 2, 2, 2, 2, 2].repeat(1_000)), ORDINARY);
        assert_eq!(after([5_000; 1_000]), ORDINARY, "the processor was away");
    }

    #[test]
    fn the_ordinary_way_gets_another_chance_after_a_while() {
        let (mut writer, mut to) = (SlotWriter { way: NON_TEMPORAL }, vec![0; SHORTEST]);
        let mut trial = |writer: &mut SlotWriter| writer.copy(&mut to, &[1; SHORTEST], true);
        for _ in 0..NON_TEMPORAL_TRIALS {
            trial(&mut writer);
            assert!(matches!(writer.way, Way::NonTemporal { .. }));
        }
        trial(&mut writer);
        assert_eq!(writer.way, SlotWriter::default().way);
        for _ in 0..UNTIMED_TRIALS {
            trial(&mut writer);
        }
        assert_eq!(writer.way, ORDINARY, "nothing was timed yet");
    }
}
