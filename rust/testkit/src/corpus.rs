//! What fuzzers have found, and what they began with.

use std::path::Path;

/// Plays every file of the corpus of a fuzz target; fails if there is none.
pub fn play_corpus(target: &str, play: impl Fn(&[u8])) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut played = 0;
    for file in std::fs::read_dir(&corpus).expect("the corpus is there") {
        let path = file.expect("the corpus can be read").path();
        play(&std::fs::read(&path).expect("the corpus can be read"));
        played += 1;
    }
    assert!(played > 0, "{} is empty", corpus.display());
}
