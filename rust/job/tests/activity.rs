//! What ranks tell of themselves while they run, and what is seen of those that tell nothing more.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::time::Duration;

use common::run;
use phalanx_types::{FailureKind, Job};

fn job(hang_timeout: Duration) -> Job {
    let mut job = Job::new("test", "test", 2, 1).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.policy.hang_timeout = hang_timeout;
    job
}

#[test]
fn a_rank_that_only_beats_hangs_with_the_stopped_one_as_the_cause() {
    // Both have made their file of stacks; the signal is ignored, so nothing is ever written to it.
    let script = r#"trap '' 41; touch "$PHALANX_RANK_DIR/stacks"; [ "$RANK" = 1 ] && kill -STOP $$
        while :; do echo '{"beat": {"ran": false, "operations": 7, "doing": "all_reduce 7"}}' >&3; sleep 0.1; done"#;
    let (told, ..) = run(&job(Duration::from_millis(800)), script);
    let failure = told.failure.unwrap();
    assert_eq!((failure.kind, failure.rank), (FailureKind::Hang, Some(1)), "HANG-1");
    assert!(failure.message.ends_with("; its process is stopped"), "{}", failure.message);
    assert!(failure.stacks.contains("rank 0:\n  (it did not answer in time)"), "{}", failure.stacks);
    assert!(failure.stacks.contains("rank 1:\n  (its process is stopped)"), "{}", failure.stacks);
    assert_eq!(failure.ranks[0].doing, "all_reduce 7");
}

#[test]
fn output_reports_and_python_that_runs_are_progress() {
    for line in [
        "echo x",
        r#"echo '{"report": {"step": 3, "values": {}}}' >&3"#,
        r#"echo '{"beat": {"ran": true}}' >&3"#,
        r#"echo "{\"beat\": {\"ran\": false, \"operations\": $i}}" >&3"#,
    ] {
        let script = format!(r#"i=0; while [ $i -lt 25 ]; do i=$((i + 1)); {line}; sleep 0.1; done"#);
        let (told, ..) = run(&job(Duration::from_millis(1500)), &script);
        assert_eq!(told.failure, None, "ACTIVITY-1: {line}");
    }
}

#[test]
fn steps_reach_the_driver() {
    let script =
        r#"echo '{"report": {"step": 120, "step_us": 5000, "values": {"loss": 0.5}}}' >&3; sleep 1.5"#;
    let (told, ..) = run(&job(Duration::ZERO), script);
    assert_eq!(told.failure, None);
    let steps: Vec<_> = told.reports.iter().map(|report| (report.step, report.values.as_str())).collect();
    assert_eq!(steps, [(120, r#"{"loss":0.5}"#); 2]);
    assert!(told.statuses.contains(&"training, step 120".to_string()), "{:?}", told.statuses);
    assert_eq!(told.statuses.first().map(String::as_str), Some("waiting for 1 of 1 tasks"));
    assert_eq!(told.statuses.last().map(String::as_str), Some("over"));
}
