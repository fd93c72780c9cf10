//! The fuzzer's entry without the fuzzer: its corpus.

use phalanx_scoring::fuzz::packet;
use phalanx_testkit::play_corpus;

#[test]
fn every_packet_of_the_corpus_is_heard() {
    play_corpus("scoring", packet);
}
