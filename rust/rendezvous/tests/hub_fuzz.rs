//! The fuzzer's entries of the hub's connections without the fuzzer: their corpora, and byte soup.

use phalanx_rendezvous::fuzz::{frames, hello, tls};
use phalanx_testkit::play_corpus;
use proptest::prelude::*;

#[test]
fn every_stream_of_the_corpora_is_heard() {
    play_corpus("hub_hello", hello);
    play_corpus("hub_frames", frames);
    play_corpus("hub_tls", tls);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn byte_soup_is_no_hello_and_hurts_nobody(stream: Vec<u8>) {
        hello(&stream);
        frames(&stream);
        tls(&stream);
    }
}
