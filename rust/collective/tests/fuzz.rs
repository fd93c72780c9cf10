//! The fuzzer's entry without the fuzzer: its corpus, and byte soup.

use phalanx_collective::fuzz::stranger;
use phalanx_testkit::play_corpus;
use proptest::prelude::*;

#[test]
fn no_stranger_of_the_corpus_is_let_in() {
    play_corpus("handshake", stranger);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn byte_soup_is_no_rank(mut bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        if magic && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(b"PHXCOLL1");
        }
        stranger(&bytes);
    }
}
