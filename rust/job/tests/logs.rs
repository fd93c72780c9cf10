//! Where ranks' output stays besides the live view: in the executor's own log, and in a folder at the end.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::fs::read_to_string;
use std::io::{Read as _, pipe};
use std::time::Duration;

use common::{TestCallbacks, listen, open, run_node_of, test_node};
use phalanx_job::Payload;
use phalanx_types::{ExecutorLog, Job};

/// Runs `script` as both ranks of a job of one node: the executor's log, and the ranks' logs that stayed.
fn logs_of(executor: ExecutorLog, max_restarts: u32, script: &str) -> (String, [String; 2]) {
    let mut job = Job::new("test", "test", 2, 1).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.policy.max_restarts = max_restarts;
    let (dir, shared) = (phalanx_testkit::temp_dir("job"), phalanx_testkit::temp_dir("shared"));
    job.logs.executor = executor;
    job.logs.directory = shared.path().display().to_string();
    let driver = open(&job);
    let node = test_node(&driver, 0, script, dir.path());
    let (mut reader, writer) = pipe().unwrap();
    let callbacks = TestCallbacks { executor_log: Some(writer.into()), ..TestCallbacks::default() };
    let payload = dir.path().join("payload");
    std::fs::write(&payload, "what they execute").unwrap();
    let running = std::thread::spawn(move || run_node_of(&node, Payload::File(&payload), callbacks));
    listen(&driver);
    running.join().unwrap().unwrap();
    let mut collected = String::new();
    reader.read_to_string(&mut collected).unwrap();
    let kept = [0, 1]
        .map(|rank| read_to_string(shared.path().join(format!("phalanx-test/rank-{rank}.log"))).unwrap());
    (collected, kept)
}

#[test]
fn an_executors_log_has_all_output_and_a_folder_the_files() {
    let (collected, kept) = logs_of(ExecutorLog::All, 0, r#"echo "$(cat "$PHALANX_PAYLOAD"), rank $RANK""#);
    let mut lines: Vec<&str> = collected.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[rank 0] what they execute, rank 0", "[rank 1] what they execute, rank 1"]);
    assert_eq!(kept, ["what they execute, rank 0\n", "what they execute, rank 1\n"]);
}

#[test]
fn of_ranks_that_fail_an_executors_log_has_the_end_and_the_reason_for_each_attempt() {
    let script = r#"echo "rank $RANK, attempt $TORCHELASTIC_RESTART_COUNT"
        [ $RANK = 0 ] && [ $TORCHELASTIC_RESTART_COUNT = 0 ] && kill -9 $$; exit 0"#;
    let (collected, kept) = logs_of(ExecutorLog::Errors, 1, script);
    let expected = "[rank 0] rank 0, attempt 0\n[rank 0] [phalanx] of job test: was ended by SIGKILL; its whole output is in ";
    assert!(collected.starts_with(expected), "{collected}");
    assert_eq!(collected.lines().count(), 2, "{collected}");
    assert!(
        kept[0].starts_with("rank 0, attempt 0\n") && kept[0].ends_with("rank 0, attempt 1\n"),
        "{kept:?}"
    );
}

#[test]
fn an_executors_log_that_is_off_has_nothing() {
    assert_eq!(logs_of(ExecutorLog::Off, 0, "echo hello; exit 3").0, "");
}
