//! What the hashes of rows come to, as `python/phalanx/feeding/blocks/identity.py` and the jar's `RowSums` have it.

/// Any number would do that looks like chance; `BASE` of `write_blocks.py`.
const BASE: u64 = 0x16a5_f1d3_c7b9_e24d;
const BITS: u32 = 61;
const PRIME: u64 = (1 << BITS) - 1;
const SQUARE: u64 = times(BASE, BASE);
const CUBE: u64 = times(SQUARE, BASE);
const FOURTH: u64 = times(SQUARE, SQUARE);

/// What the hashes of the rows of a block come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RowSums {
    /// Their sum, modulo 2^64.
    pub content: u64,
    /// Of the hashes h1 to hn, `h1 B^(n-1) + ... + hn` modulo the prime 2^61 - 1.
    pub sequence: u64,
}

impl RowSums {
    /// Adds the hashes of rows that follow.
    pub(super) fn add(&mut self, hashes: &[u64]) {
        self.content = hashes.iter().fold(self.content, |sum, hash| sum.wrapping_add(*hash));
        // Four at a time: products with different powers needn't wait for each other, and five have room in 128 bits.
        let (fours, rest) = hashes.as_chunks::<4>();
        for [first, second, third, fourth] in fours {
            let sum = product(self.sequence, FOURTH)
                + product(reduced(*first), CUBE)
                + product(reduced(*second), SQUARE)
                + product(reduced(*third), BASE)
                + u128::from(*fourth);
            self.sequence = folded(sum);
        }
        for hash in rest {
            self.sequence = folded(product(self.sequence, BASE) + u128::from(*hash));
        }
    }
}

const fn product(one: u64, other: u64) -> u128 {
    one as u128 * other as u128
}

const fn times(one: u64, other: u64) -> u64 {
    folded(product(one, other))
}

/// A number below 2^125, modulo the prime: 2^61 is 1.
const fn folded(number: u128) -> u64 {
    // The upper part has 64 bits at most.
    reduced(reduced((number >> BITS) as u64) + (number as u64 & PRIME))
}

/// A number of 64 bits, modulo the prime.
const fn reduced(number: u64) -> u64 {
    let number = (number & PRIME) + (number >> BITS);
    if number >= PRIME { number - PRIME } else { number }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_sequence_is_the_polynomial_however_the_hashes_come(
            hashes in proptest::collection::vec(prop_oneof![any::<u64>(), Just(u64::MAX), Just(PRIME)], 0..40),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut sums = RowSums::default();
            let (before, behind) = hashes.split_at(cut.index(hashes.len() + 1));
            sums.add(before);
            sums.add(behind);
            let expected = hashes.iter().fold(0, |sum: u128, hash| {
                (sum * u128::from(BASE) % u128::from(PRIME) + u128::from(*hash)) % u128::from(PRIME)
            });
            prop_assert_eq!(u128::from(sums.sequence), expected);
            prop_assert_eq!(sums.content, hashes.iter().fold(0, |sum: u64, hash| sum.wrapping_add(*hash)));
        }
    }
}
