//! The fuzzer's entries without the fuzzer: their corpora.

use phalanx_supervisor::fuzz::{guard, pool};
use phalanx_testkit::play_corpus;

#[test]
fn every_stream_of_the_corpora_is_heard() {
    play_corpus("guard", guard);
    play_corpus("pool", pool);
}
