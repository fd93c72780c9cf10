//! What ranks tell of themselves while they run, and what is seen of those that tell nothing more.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::time::Duration;

use common::{LONG, TestCallbacks, listen, open, run, spawn_node, test_node};
use phalanx_testkit::{eventually, temp_dir};
use phalanx_types::{Deadline, FailureKind, Job};

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
    assert_eq!((failure.kind, failure.rank), (FailureKind::Hang, Some(1)), "DRIVER-20");
    assert!(failure.message.ends_with("; its process is stopped"), "{}", failure.message);
    assert!(failure.stacks.contains("rank 0:\n  (it did not answer in time)"), "{}", failure.stacks);
    assert!(failure.stacks.contains("rank 1:\n  (its process is stopped)"), "NODE-36: {}", failure.stacks);
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
        assert_eq!(told.failure, None, "NODE-35: {line}");
    }
}

#[test]
fn a_step_in_a_ranks_words_is_progress_also_of_a_program_that_is_none_of_ours() {
    let program = r#"
import mmap, os, socket, struct, time
node = socket.socket(fileno=3)
packet, fds, _, _ = socket.recv_fds(node, 4096, 1)
assert packet == b'{"version":1,"kind":"words"}', packet
words = mmap.mmap(fds[0], 4096)
version, generation, asked, reported, frozen, notices = struct.unpack("<6Q", words[:48])
none = 2**64 - 1
assert (version, asked, reported, frozen, notices) == (1, none, none, 0, 0), words[:48]
for step in range(25):
    words[24:32] = struct.pack("<Q", step)
    time.sleep(0.1)
node.detach()
"#;
    let job = job(Duration::from_millis(1500));
    let script = format!("exec python3 -c '{}'", program.replace('\'', "'\\''"));
    let (told, ..) = run(&job, &script);
    assert_eq!(told.failure, None, "NODE-35, GUARD-18");
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
    assert_eq!(told.statuses.last().map(String::as_str), Some("over"));
}

#[test]
fn stacks_and_logs_are_there_for_who_asks_while_the_ranks_run() {
    // Each writes what faulthandler would, when it is asked for.
    let script = r#"trap 'echo in train >>"$PHALANX_RANK_DIR/stacks"' 41; touch "$PHALANX_RANK_DIR/stacks"
        echo hello from $RANK; until [ -e "$GO" ]; do sleep 0.05; done"#;
    let dir = temp_dir("asked");
    let job = job(Duration::ZERO);
    let driver = open(&job);
    let mut test = test_node(&driver, 0, script, dir.path());
    test.spec.env.insert("GO".into(), dir.path().join("go").to_string_lossy().into_owned());
    let node = spawn_node(test, TestCallbacks::default());
    for rank in 0..2 {
        let hello = format!("hello from {rank}\n");
        eventually("its output has come", LONG, || driver.logs().newest(rank) == hello);
    }
    assert_eq!(driver.logs().newest(7), "");
    // Again where a busy machine needs longer than they are waited for; then a rank answers twice.
    eventually("both say what they do", LONG, || {
        let stacks = driver.ask_for_stacks().wait(Deadline::after(LONG)).unwrap().unwrap();
        let said = |rank| stacks.iter().find(|of| of.rank == rank).map_or("", |of| of.text.as_str());
        stacks.len() == 2 && (0..2).all(|rank| said(rank).starts_with("in train\n"))
    });
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(listen(&driver).failure, None);
    node.join().unwrap().unwrap();
    assert_eq!(driver.ask_for_stacks().wait(Deadline::after(LONG)).unwrap(), Some(Vec::new()));
    assert_eq!(driver.logs().newest(1), "hello from 1\n");
}
