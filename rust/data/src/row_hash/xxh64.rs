//! XXH64 of single values, as `org.apache.spark.sql.catalyst.expressions.XXH64` has it. A chain of values hashes each
//! with the hash of the one before it as its seed.

const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME_5: u64 = 0x27d4_eb2f_1656_67c5;

/// Of an integer of 32 bits.
#[inline(always)]
pub(super) fn int(value: u32, seed: u64) -> u64 {
    finished(with_four(seed.wrapping_add(PRIME_5).wrapping_add(4), value))
}

/// Of an integer of 64 bits.
#[inline(always)]
pub(super) fn long(value: u64, seed: u64) -> u64 {
    finished(with_eight(seed.wrapping_add(PRIME_5).wrapping_add(8), value))
}

/// Of bytes, of any number.
pub(super) fn bytes(bytes: &[u8], seed: u64) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<32>();
    let mut hash = if blocks.is_empty() { seed.wrapping_add(PRIME_5) } else { of_blocks(blocks, seed) };
    hash = hash.wrapping_add(bytes.len() as u64);
    let (eights, rest) = rest.as_chunks::<8>();
    for eight in eights {
        hash = with_eight(hash, u64::from_le_bytes(*eight));
    }
    let (fours, rest) = rest.as_chunks::<4>();
    for four in fours {
        hash = with_four(hash, u32::from_le_bytes(*four));
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(PRIME_5);
        hash = hash.rotate_left(11).wrapping_mul(PRIME_1);
    }
    finished(hash)
}

fn of_blocks(blocks: &[[u8; 32]], seed: u64) -> u64 {
    let mut sums = [
        seed.wrapping_add(PRIME_1).wrapping_add(PRIME_2),
        seed.wrapping_add(PRIME_2),
        seed,
        seed.wrapping_sub(PRIME_1),
    ];
    for block in blocks {
        for (sum, eight) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
            *sum = round(*sum, u64::from_le_bytes(*eight));
        }
    }
    let rotated = sums.iter().zip([1, 7, 12, 18]).map(|(sum, by)| sum.rotate_left(by));
    sums.iter().fold(rotated.fold(0, u64::wrapping_add), |hash, sum| {
        (hash ^ round(0, *sum)).wrapping_mul(PRIME_1).wrapping_add(PRIME_4)
    })
}

#[inline(always)]
fn with_four(hash: u64, value: u32) -> u64 {
    let hash = hash ^ u64::from(value).wrapping_mul(PRIME_1);
    hash.rotate_left(23).wrapping_mul(PRIME_2).wrapping_add(PRIME_3)
}

#[inline(always)]
fn with_eight(hash: u64, value: u64) -> u64 {
    (hash ^ round(0, value)).rotate_left(27).wrapping_mul(PRIME_1).wrapping_add(PRIME_4)
}

#[inline(always)]
fn round(sum: u64, value: u64) -> u64 {
    sum.wrapping_add(value.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
}

#[inline(always)]
fn finished(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(PRIME_2);
    let hash = (hash ^ (hash >> 29)).wrapping_mul(PRIME_3);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_hash_as_spark_hashes_them() {
        // `XXH64.hashInt`, `hashLong` and `hashUnsafeBytes` of Spark 4.3, bytes being 0, 1, 2 and so on.
        for (value, hash) in [
            (0, 3_614_696_996_920_510_707),
            (1, 11_748_118_483_920_312_617),
            (u32::MAX, 2_017_008_487_422_258_757),
            (0x7fc0_0000, 2_692_338_816_207_849_720),
        ] {
            assert_eq!(int(value, 42), hash);
        }
        for (value, hash) in [
            (0, 13_194_218_611_613_725_804),
            (1, 11_445_071_438_006_506_034),
            (u64::MAX, 3_858_142_552_250_413_010),
            (0x7ff8_0000_0000_0000, 15_318_800_012_184_600_370),
        ] {
            assert_eq!(long(value, 42), hash);
        }
        let given: Vec<u8> = (0..100).collect();
        for (count, hash) in [
            (0, 11_002_672_306_508_523_268),
            (1, 9_486_749_600_008_296_231),
            (3, 6_019_482_000_716_350_659),
            (4, 11_821_466_516_360_965_344),
            (7, 4_522_324_563_441_226_749),
            (8, 11_303_505_167_653_032_870),
            (15, 5_913_754_614_426_879_871),
            (31, 9_457_807_973_980_583_769),
            (32, 9_802_614_321_847_619_698),
            (33, 2_046_936_095_001_747_419),
            (44, 14_692_492_173_034_041_269),
            (63, 182_631_115_370_802_890),
            (64, 14_863_999_917_739_982_478),
            (100, 9_339_668_972_473_275_655),
        ] {
            assert_eq!(bytes(&given[..count], 42), hash, "{count} bytes");
        }
        assert_eq!(bytes(&given[..45], (-7i64).cast_unsigned()), 13_510_210_136_226_427_983);
    }

    proptest::proptest! {
        #[test]
        fn numbers_hash_as_their_bytes(value: u64, seed: u64) {
            assert_eq!(long(value, seed), bytes(&value.to_le_bytes(), seed));
            assert_eq!(int(value as u32, seed), bytes(&(value as u32).to_le_bytes(), seed));
        }
    }
}
