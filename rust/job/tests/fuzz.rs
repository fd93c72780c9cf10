//! The fuzzer's entry without the fuzzer: its corpus.

use phalanx_job::fuzz::facts;
use phalanx_testkit::play_corpus;

#[test]
fn every_script_of_the_corpus_plays() {
    play_corpus("facts", facts);
}
