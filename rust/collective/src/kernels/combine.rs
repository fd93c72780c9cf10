//! The loop that combines several buffers into one.

use std::cmp::Ordering;
use std::marker::PhantomData;

use half::bf16;

use super::dispatch::{Loop, run_widest};
use super::ops::{Op, Two};
use super::simd_lane::{BFloat16Pair, SimdLane};

/// Elements that are combined before the next block: their accumulators stay in the first-level cache.
const BLOCK: usize = 512;

/// Combines `destination`, source number `own`, with the `others` around it.
pub(super) fn combine<L: SimdLane<N>, O: Op<L::Acc>, const N: usize>(
    destination: &mut [u8],
    own: usize,
    others: &[&[u8]],
    ranks: u32,
) {
    run_widest(Combining::<L, O, N> { destination, own, others, ranks, of: PhantomData });
}

/// The same for bfloat16: two at a time, and the last by itself where their number is odd.
pub(super) fn combine_bfloat16<O: Op<Two> + Op<f32>>(
    destination: &mut [u8],
    own: usize,
    others: &[&[u8]],
    ranks: u32,
) {
    let even = destination.len() / 4 * 4;
    let (pairs, last) = destination.split_at_mut(even);
    combine::<BFloat16Pair, O, 4>(pairs, own, others, ranks);
    if !last.is_empty() {
        let others: Vec<&[u8]> = others.iter().map(|other| &other[even..]).collect();
        combine::<bf16, O, 2>(last, own, &others, ranks);
    }
}

struct Combining<'a, L, O, const N: usize> {
    destination: &'a mut [u8],
    own: usize,
    others: &'a [&'a [u8]],
    ranks: u32,
    of: PhantomData<(L, O)>,
}

impl<L: SimdLane<N>, O: Op<L::Acc>, const N: usize> Loop for Combining<'_, L, O, N> {
    #[inline(always)]
    fn run(self) {
        let Combining { destination, own, others, ranks, .. } = self;
        let (destination, rest) = destination.as_chunks_mut::<N>();
        debug_assert!(rest.is_empty(), "a whole number of elements");
        if let ([other], false) = (others, L::IS_LONG) {
            let pairs = destination.iter_mut().zip(other.as_chunks::<N>().0);
            if own == 0 {
                pairs.for_each(|(a, b)| *a = L::store(O::finish(O::apply(L::load(*a), L::load(*b)), ranks)));
            } else {
                pairs.for_each(|(b, a)| *b = L::store(O::finish(O::apply(L::load(*a), L::load(*b)), ranks)));
            }
            return;
        }
        let mut accumulators = [L::load([0; N]); BLOCK];
        for (index, block) in destination.chunks_mut(BLOCK).enumerate() {
            let accumulators = &mut accumulators[..block.len()];
            let at = index * BLOCK;
            for number in 0..=others.len() {
                let source = match number.cmp(&own) {
                    Ordering::Less => &others[number].as_chunks::<N>().0[at..][..block.len()],
                    Ordering::Equal => &*block,
                    Ordering::Greater => &others[number - 1].as_chunks::<N>().0[at..][..block.len()],
                };
                let pairs = accumulators.iter_mut().zip(source);
                if number == 0 {
                    pairs.for_each(|(sum, bytes)| *sum = L::load(*bytes));
                } else {
                    pairs.for_each(|(sum, bytes)| *sum = O::apply(*sum, L::load(*bytes)));
                }
            }
            block.iter_mut().zip(accumulators).for_each(|(to, sum)| *to = L::store(O::finish(*sum, ranks)));
        }
    }
}
