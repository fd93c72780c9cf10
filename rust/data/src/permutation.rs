//! A permutation of the numbers below `n`, picked by a key, that needs no memory: an element is computed when it is
//! asked for.
//!
//! It is a Feistel network on the smallest rectangle of `a` columns and `b` rows that has `n` fields (Black and
//! Rogaway, Ciphers with Arbitrary Finite Domains, 2002): each round moves a number along its row by what a hash of the
//! row says, or along its column likewise. A number that lands beyond `n` goes through the network again, until it is
//! below; few do, since the rectangle has fewer than `a` fields too many.
//!
//! - PLAN-4 (permutes): for each `n` and key, each number below `n` comes up exactly once.
//! - PLAN-5 (spreads): over many keys, each element is at each place equally often, and each order of few elements
//!   comes up equally often. It is no cipher: who knows the order of some elements may compute the others.

/// How many rounds the network has. Four make one that simple tests can't tell from chance (Luby and Rackoff, 1988).
const ROUNDS: usize = 8;
/// Few elements need more until each order comes up equally often; for five, eight are too few.
const ROUNDS_OF_FEW: usize = 32;
const FEW: u64 = 1 << 10;

/// A permutation of the numbers below its length.
#[derive(Debug, Clone)]
pub struct Permutation {
    length: u64,
    columns: u64,
    rows: u64,
    keys: [u64; ROUNDS_OF_FEW],
    rounds: usize,
}

impl Permutation {
    /// That of the numbers below `length` which belongs to `key`.
    pub fn new(length: u64, key: u64) -> Permutation {
        let columns = ceil_root(length).max(1);
        let rows = length.div_ceil(columns).max(1);
        let mut state = key;
        let keys = std::array::from_fn(|_| next(&mut state));
        let rounds = if length < FEW { ROUNDS_OF_FEW } else { ROUNDS };
        Permutation { length, columns, rows, keys, rounds }
    }

    /// The element at `position`, which has to be below the length.
    pub fn at(&self, position: u64) -> u64 {
        debug_assert!(position < self.length);
        let mut number = position;
        loop {
            number = self.through(number);
            if number < self.length {
                return number;
            }
        }
    }

    fn through(&self, number: u64) -> u64 {
        let (mut row, mut column) = (number / self.columns, number % self.columns);
        for keys in self.keys[..self.rounds].chunks_exact(2) {
            column = moved(column, scaled(mix(row ^ keys[0]), self.columns), self.columns);
            row = moved(row, scaled(mix(column ^ keys[1]), self.rows), self.rows);
        }
        row * self.columns + column
    }
}

/// A key of its own for each of `words`, in their order.
pub(crate) fn key_of(words: &[u64]) -> u64 {
    words.iter().fold(0, |key, word| mix(key.rotate_left(23) ^ mix(*word)))
}

fn moved(at: u64, by: u64, size: u64) -> u64 {
    let to = at + by;
    if to >= size { to - size } else { to }
}

/// A number below `size`, each about equally often.
fn scaled(hash: u64, size: u64) -> u64 {
    ((u128::from(hash) * u128::from(size)) >> 64) as u64
}

/// The finalizer of SplitMix64 (Stafford's mix 13), which changes each bit with each bit.
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mix(*state)
}

fn ceil_root(number: u64) -> u64 {
    let root = number.isqrt();
    if root * root == number { root } else { root + 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn elements(length: u64, key: u64) -> Vec<u64> {
        let permutation = Permutation::new(length, key);
        (0..length).map(|position| permutation.at(position)).collect()
    }

    /// The sum by which a count that should be even differs from it (Pearson's chi-squared).
    fn unevenness(counts: &[u64]) -> f64 {
        let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        counts.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum()
    }

    /// What chance exceeds once in a billion times, about: six standard deviations above the mean.
    fn bound(cells: usize) -> f64 {
        let freedom = (cells - 1) as f64;
        freedom + 6.0 * (2.0 * freedom).sqrt() + 6.0
    }

    proptest! {
        #[test]
        fn each_number_comes_up_once(length in 0u64..3000, key: u64) {
            let mut seen = elements(length, key);
            seen.sort_unstable();
            prop_assert!(seen.into_iter().eq(0..length), "PLAN-4");
        }

        #[test]
        fn numbers_of_any_size_stay_below_the_length(length in 1u64..u64::MAX / 2, key: u64, at: u64) {
            prop_assert!(Permutation::new(length, key).at(at % length) < length, "PLAN-4");
        }
    }

    #[test]
    fn each_order_of_few_elements_comes_up_equally_often() {
        for length in 2..=5u64 {
            let mut counts = std::collections::BTreeMap::new();
            for key in 0..24_000 {
                *counts.entry(elements(length, key)).or_insert(0u64) += 1;
            }
            let counts: Vec<_> = counts.into_values().collect();
            assert_eq!(counts.len() as u64, (1..=length).product::<u64>(), "PLAN-5");
            assert!(unevenness(&counts) < bound(counts.len()), "PLAN-5: {length} {counts:?}");
        }
    }

    #[test]
    fn each_element_is_at_each_place_equally_often() {
        for length in [7u64, 37, 100] {
            let mut counts = vec![0u64; (length * length) as usize];
            for key in 0..4_000 {
                for (at, element) in elements(length, key_of(&[key, 1])).into_iter().enumerate() {
                    counts[at * length as usize + element as usize] += 1;
                }
            }
            assert!(unevenness(&counts) < bound(counts.len()), "PLAN-5: {length}");
        }
    }

    #[test]
    fn neighbours_are_parted() {
        // How far two rows that were neighbours are apart: by chance a third of the length, on average.
        let length = 100_000;
        let mut place = vec![0u64; length as usize];
        for (at, element) in elements(length, 7).into_iter().enumerate() {
            place[element as usize] = at as u64;
        }
        let apart: u64 = place.windows(2).map(|two| two[0].abs_diff(two[1])).sum();
        let mean = apart as f64 / (length - 1) as f64 / length as f64;
        assert!((mean - 1.0 / 3.0).abs() < 0.01, "PLAN-5: {mean}");
    }
}
