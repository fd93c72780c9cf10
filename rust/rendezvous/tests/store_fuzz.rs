//! The fuzzer's entry without the fuzzer: its corpus, and byte soup.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use phalanx_rendezvous::store::fuzz::{meet, play};
use phalanx_rendezvous::store::protocol::{Query, put_bytes, put_list, put_query};
use phalanx_testkit::play_corpus;
use proptest::prelude::*;

#[test]
fn every_script_of_the_corpus_plays() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/store");
    let mut played = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        play(&std::fs::read(file.unwrap().path()).unwrap());
        played += 1;
    }
    assert!(played >= Query::ALL.len());
}

#[test]
fn every_meeting_of_the_corpus_plays() {
    play_corpus("store_secure", meet);
}

/// A well-formed message, among few keys, so that clients meet.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let key = prop::sample::select(vec!["/a", "/b", "/c", ""]);
    let value = prop::sample::select(vec!["", "1", "-9223372036854775808", "x", "12 apples"]);
    let keys = prop::collection::vec(key.clone(), 0..4);
    (prop::sample::select(&Query::ALL[1..]), key, keys, value.clone(), value, any::<i8>()).prop_map(
        |(query, key, keys, value, other, number)| {
            let mut out = Vec::new();
            match query {
                Query::Check | Query::Wait | Query::MultiGet => put_list(&mut out, query, &keys),
                Query::MultiSet => {
                    out.push(query as u8);
                    out.extend((keys.len() as u64).to_le_bytes());
                    for key in keys {
                        put_bytes(&mut out, key.as_bytes());
                        put_bytes(&mut out, value.as_bytes());
                    }
                }
                Query::NumKeys | Query::CancelWait | Query::ListKeys | Query::Validate => {
                    out.push(query as u8)
                }
                Query::Ping => out.extend([query as u8, 1, 2, 3, 4]),
                _ => {
                    put_query(&mut out, query, key.as_bytes());
                    match query {
                        Query::Add | Query::Barrier => out.extend(i64::from(number % 4).to_le_bytes()),
                        Query::Set | Query::Append | Query::QueuePush => {
                            put_bytes(&mut out, value.as_bytes())
                        }
                        Query::CompareSet => {
                            put_bytes(&mut out, value.as_bytes());
                            put_bytes(&mut out, other.as_bytes());
                        }
                        _ => {}
                    }
                }
            }
            out
        },
    )
}

fn step() -> impl Strategy<Value = Vec<u8>> {
    let leave = any::<u8>().prop_map(|client| vec![(7 << 3) | (client % 8), 0]);
    let send = (any::<u8>(), message()).prop_map(|(client, message)| {
        let mut step = vec![client % 8, message.len() as u8];
        step.extend(message);
        step
    });
    prop_oneof![1 => leave, 12 => send]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn byte_soup_hurts_no_invariant(script in prop::collection::vec(any::<u8>(), 0..2000)) {
        play(&script);
        meet(&script);
    }

    #[test]
    fn well_formed_scripts_hurt_no_invariant(steps in prop::collection::vec(step(), 0..60)) {
        play(&steps.concat());
    }
}
