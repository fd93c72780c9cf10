//! Nodes that meet through Spark tell one another of failures through the job's store, to which anybody can write.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Gather, LONG, TestCallbacks, Told, end_stage, open, silent, spawn_node, test_node};
use phalanx_rendezvous::store::StoreClient;
use phalanx_testkit::eventually_some;
use phalanx_types::{Deadline, Job, Join};

/// Base64 of what would run code where it is unpickled.
const EXPLOIT: &str = "Y29zCnN5c3RlbQooUydpZCcKdFIu";

/// Two nodes of a rank each, of which the second can't reach the hub; the store is the first one's. What the driver
/// tells, after `meanwhile`.
fn without_the_second(script: &str, meanwhile: impl FnOnce(&mut StoreClient)) -> Told {
    let mut job = Job::new("fallback", "t", 2, 2).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.policy.connect_timeout = Duration::from_millis(500);
    let dir = phalanx_testkit::temp_dir("fallback");
    let (driver, gather, nowhere) = (open(&job), Gather::of(2), silent());
    let nodes: Vec<_> = (0..2)
        .map(|partition| {
            let mut test = test_node(&driver, partition, script, dir.path());
            if partition == 1 {
                test.spec.hub.clone_from(&nowhere.address);
            }
            let gather = Some(Arc::clone(&gather));
            spawn_node(test, TestCallbacks { gather, partition, ..TestCallbacks::default() })
        })
        .collect();
    let mut store = eventually_some("the nodes have met", LONG, || {
        let vote: serde_json::Value = serde_json::from_str(gather.texts().first()?).unwrap();
        let join: Join = serde_json::from_value(vote["join"].clone()).unwrap();
        StoreClient::connect((join.address, join.store_port).into(), Deadline::after(LONG)).ok()
    });
    meanwhile(&mut store);
    end_stage(&driver, nodes)
}

#[test]
fn a_strangers_note_on_the_store_fails_the_job_and_never_reaches_the_driver() {
    let told = without_the_second("exec sleep 600", |store| {
        let error = serde_json::json!({"type_name": "ValueError", "message": "crafted", "pickle": EXPLOIT});
        let exit = serde_json::json!({
            "rank": 1, "host": "h", "state": "raised", "message": "", "error": error, "last_lines": [],
            "log_path": "", "at_us": 0, "last_output_us": null,
        });
        let note = serde_json::json!({"end": exit, "age_us": 0}).to_string();
        store.set("phalanx/first failure", note.as_bytes(), Deadline::after(LONG)).unwrap();
    });
    let failure = told.failure.unwrap();
    let shown = format!("{failure:?}");
    assert!(!shown.contains(EXPLOIT) && !shown.contains("crafted"), "FALLBACK-4: {shown}");
    assert!(failure.message.contains("no node of this job"), "FALLBACK-4: {shown}");
}

#[test]
fn a_failure_that_came_through_the_store_has_its_exception_from_the_nodes_own_report() {
    let script = format!(
        r#"[ $RANK = 1 ] || exec sleep 600
        echo '{{"type_name": "KeyError", "message": "m", "at_us": 1, "pickle": "{EXPLOIT}"}}' > "$PHALANX_RANK_DIR/error.json"
        exit 1"#
    );
    let failure = without_the_second(&script, |_| ()).failure.unwrap();
    assert_eq!((failure.rank, failure.exception_type.as_str()), (Some(1), "KeyError"), "FALLBACK-1");
    assert_eq!(failure.pickle, EXPLOIT, "FALLBACK-5: Spark brought it");
}
