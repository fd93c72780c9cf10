//! Nodes that encrypt: where their ranks find the store, that they find each other there, and that nobody gets in from
//! outside.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/by_hand.rs"]
mod by_hand;
mod common;

use std::time::Duration;

use by_hand::{ends_well, join_by_hand, place_of, soon};
use common::{TestCallbacks, listen, open, run, spawn_node, test_node};
use phalanx_rendezvous::store::StoreClient;
use phalanx_rendezvous::store::protocol::{Query, put_bytes, put_greeting, put_list, put_query};
use phalanx_types::{Encryption, Job};

/// A rank that tells the store that it is there, and waits there for the other.
fn script() -> String {
    let said = |rank: u32| {
        let mut said = Vec::new();
        put_greeting(&mut said, 7);
        put_query(&mut said, Query::Set, format!("/rank {rank}").as_bytes());
        put_bytes(&mut said, b"here");
        put_list(&mut said, Query::Wait, &["/rank 0", "/rank 1"]);
        said.iter().map(|byte| format!("\\x{byte:02x}")).collect::<String>()
    };
    format!(
        r#"exec bash -c '
        [ $MASTER_ADDR = 127.0.0.1 ] && [ $PHALANX_ENCRYPTION = on ] || exit 3
        said=("{}" "{}")
        exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT
        printf "${{said[$RANK]}}" >&3
        echo rank $RANK at $MASTER_PORT: $(head -c 5 <&3 | wc -c) bytes'"#,
        said(0),
        said(1)
    )
}

fn job() -> Job {
    let mut job = Job::new("encrypted", "t", 2, 2).unwrap();
    job.policy.encryption = Encryption::On { plain_gradients: false };
    job.policy.grace = Duration::from_millis(300);
    job
}

#[test]
fn ranks_of_nodes_that_encrypt_meet_at_the_store_inside_their_hosts() {
    let (told, ..) = run(&job(), &script());
    assert_eq!(told.failure, None, "NODE-49: {}", told.output);
    let ports: Vec<&str> =
        told.output.lines().filter_map(|line| line.split_once(" at ")?.1.strip_suffix(": 5 bytes")).collect();
    assert_eq!(ports.len(), 2, "NODE-49: {}", told.output);
    assert_ne!(ports[0], ports[1], "NODE-49: each node has an end of its own");
}

#[test]
fn nobody_comes_to_the_store_of_nodes_that_encrypt_from_outside() {
    let (dir, driver) = (phalanx_testkit::temp_dir("encrypted"), open(&job()));
    let node = spawn_node(test_node(&driver, 0, "true", dir.path()), TestCallbacks::default());
    let mut other = join_by_hand(&driver, 1, 0);
    let place = place_of(&mut other);
    assert!(!place.store_key.is_empty(), "who serves the store shows a key");
    assert!(StoreClient::connect(place.store, soon()).is_err(), "NODE-49");
    ends_well(&mut other, 1);
    assert_eq!(listen(&driver).failure, None);
    node.join().unwrap().unwrap();
}
