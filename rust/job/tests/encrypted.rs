//! Nodes that encrypt: where their ranks find the store, that they find each other there, and that nobody gets in from
//! outside.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Gather, LONG, TestCallbacks, Told, end_stage, open, silent, spawn_node, test_node};
use phalanx_rendezvous::store::StoreClient;
use phalanx_rendezvous::store::protocol::{Query, put_bytes, put_greeting, put_list, put_query};
use phalanx_types::{Deadline, Encryption, Job, Join};

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

/// What the driver tells of two nodes with a rank each, of which the second reaches the hub only if it is said so.
fn two_nodes(through_spark: bool, looks_at: impl FnOnce(&Gather)) -> Told {
    let mut job = Job::new("encrypted", "t", 2, 2).unwrap();
    job.policy.encryption = Encryption::On { plain_gradients: false };
    job.policy.grace = Duration::from_millis(300);
    job.policy.connect_timeout = Duration::from_millis(500);
    let dir = phalanx_testkit::temp_dir("encrypted");
    let (driver, gather, nowhere) = (open(&job), Gather::of(2), silent());
    let nodes: Vec<_> = (0..2)
        .map(|partition| {
            let mut test = test_node(&driver, partition, &script(), dir.path());
            if partition == 1 && through_spark {
                test.spec.hub.clone_from(&nowhere.address);
            }
            let gather = Some(Arc::clone(&gather));
            spawn_node(test, TestCallbacks { gather, partition, ..TestCallbacks::default() })
        })
        .collect();
    looks_at(&gather);
    // The hub lets the first go when it has heard of the second, which may have no way to it.
    end_stage(&driver, nodes.into_iter().rev())
}

#[test]
fn ranks_of_nodes_that_encrypt_meet_at_the_store_inside_their_hosts() {
    let told = two_nodes(false, |_| ());
    assert_eq!(told.failure, None, "NSTORE-1: {}", told.output);
    let ports: Vec<&str> =
        told.output.lines().filter_map(|line| line.split_once(" at ")?.1.strip_suffix(": 5 bytes")).collect();
    assert_eq!(ports.len(), 2, "NSTORE-1: {}", told.output);
    assert_ne!(ports[0], ports[1], "NSTORE-1: each node has an end of its own");
}

#[test]
fn nodes_that_meet_through_spark_encrypt_too_and_nobody_comes_in_from_outside() {
    let told = two_nodes(true, |gather| {
        let votes = phalanx_testkit::eventually_some("the nodes have met", LONG, || {
            Some(gather.texts()).filter(|texts| !texts.is_empty())
        });
        let join = |vote: &String| -> Join {
            let vote: serde_json::Value = serde_json::from_str(vote).unwrap();
            serde_json::from_value(vote["join"].clone()).unwrap()
        };
        let joins: Vec<Join> = votes.iter().map(join).collect();
        for join in &joins {
            assert_eq!(join.store_key.is_empty(), join.partition != 0, "who serves the store shows a key");
        }
        let outside = (joins[0].address, joins[0].store_port).into();
        assert!(StoreClient::connect(outside, Deadline::after(LONG)).is_err(), "NSTORE-1");
    });
    assert_eq!(told.failure, None, "NSTORE-1: {}", told.output);
}
