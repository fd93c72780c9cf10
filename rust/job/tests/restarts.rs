//! Attempts of a whole job over real sockets and processes: in place, and by another stage.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{LONG, TestHost, Told, listen, node_options, open, spawn_node};
use phalanx_job::{DriverJob, Event, Observation};
use phalanx_types::{Deadline, FailureKind, Job};

fn job(ranks: u32, tasks: u32, max_restarts: u32) -> Job {
    let mut job = Job::new("test", "test", ranks, tasks).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.policy.max_restarts = max_restarts;
    job
}

/// Runs `script` on all nodes; also what their hosts observed.
fn run(job: &Job, script: &str) -> (Told, DriverJob, tempfile::TempDir, Vec<Observation>) {
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(job);
    let observed = Arc::new(Mutex::new(Vec::new()));
    let nodes: Vec<_> = (0..job.tasks)
        .map(|p| {
            let host = TestHost { observed: Arc::clone(&observed), ..TestHost::default() };
            spawn_node(node_options(&driver, job, p, script, dir.path()), host)
        })
        .collect();
    let told = listen(&driver);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    let observed = std::mem::take(&mut *observed.lock().unwrap());
    (told, driver, dir, observed)
}

#[test]
fn a_killed_rank_starts_again_with_the_others_in_place() {
    let script = r#"
        echo "attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS rank $RANK"
        [ -e "$PHALANX_RANK_DIR/left" ] && echo "an old folder"
        touch "$PHALANX_RANK_DIR/left"
        [ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || { echo "at $MASTER_PORT"; printf "r$RANK" > "$PHALANX_RANK_DIR/result"; exit 0; }
        job="$PHALANX_RANK_DIR/../.."; touch "$job/up-$RANK"
        [ "$RANK" = 3 ] && { for r in 0 1 2; do until [ -e "$job/up-$r" ]; do sleep 0.01; done; done; kill -KILL $$; }
        printf old > "$PHALANX_RANK_DIR/result"; [ "$RANK" = 0 ] || sleep 600"#;
    let (told, driver, dir, observed) = run(&job(4, 2, 2), script);
    assert_eq!(told.failure, None);
    assert_eq!(told.resubmits, [0; 0], "RESTART-2");
    let line = "[phalanx] restart 1 of 2: rank 3 (host-1) was ended by SIGKILL\n";
    assert_eq!(told.output.matches(line).count(), 1, "{}", told.output);
    let (before, after) = told.output.split_once(line).unwrap();
    for rank in 0..4 {
        assert!(before.contains(&format!("attempt 0 of 2 rank {rank}")), "{before}");
        assert!(after.contains(&format!("attempt 1 of 2 rank {rank}")), "{after}");
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("r{rank}"), "results of the last attempt");
        let log = std::fs::read_to_string(dir.path().join(format!("phalanx-test/rank-{rank}.log"))).unwrap();
        assert!(log.contains("attempt 0") && log.contains("attempt 1"), "one file over attempts: {log}");
        assert!(log.contains("[phalanx: restart 1: rank 3 (host-1) was ended by SIGKILL]"), "{log}");
    }
    assert!(!told.output.contains("an old folder"), "NODE-5");
    assert_eq!(observed.iter().filter(|what| **what == Observation::RankRestarted).count(), 4);
}

#[test]
fn a_spent_budget_ends_the_job_with_the_last_cause() {
    let script = r#"echo "attempt $TORCHELASTIC_RESTART_COUNT"; [ "$RANK" = 1 ] && kill -SEGV $$; sleep 600"#;
    let (told, ..) = run(&job(2, 1, 1), script);
    let failure = told.failure.unwrap();
    assert_eq!((failure.kind, failure.rank, failure.restarts), (FailureKind::Signal, Some(1), 1));
    assert_eq!(failure.last_lines, ["attempt 1"], "the last attempt's only");
    assert_eq!(told.output.matches("[phalanx] restart").count(), 1);
}

#[test]
fn a_result_of_a_failed_attempt_is_not_the_last_ones() {
    let script = r#"[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && { [ "$RANK" = 1 ] && exit 3; exec sleep 600; }
        [ "$RANK" = 0 ] && { printf old > "$PHALANX_RANK_DIR/result"; exit 0; }; sleep 0.3; kill -KILL $$"#;
    let (told, driver, ..) = run(&job(2, 1, 1), script);
    assert_eq!(told.failure.unwrap().exit_code, Some(3));
    assert_eq!(driver.result_path(0), None);
}

#[test]
fn an_attempt_leaves_nothing_that_the_next_one_meets() {
    // A process that rank 0 left behind in the first attempt is gone in the second.
    let dir = phalanx_testkit::temp_dir("job");
    let pid = dir.path().join("pid");
    let script = format!(
        r#"if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then setsid sh -c 'trap "" TERM; echo $$ > {pid}.part; mv {pid}.part {pid}; sleep 600' & 
           until [ -e {pid} ]; do sleep 0.01; done; kill -KILL $$; fi; [ -d /proc/$(cat {pid}) ] && echo alive; exit 0"#,
        pid = pid.display()
    );
    let (told, ..) = run(&job(1, 1, 1), &script);
    assert_eq!(told.failure, None);
    assert!(!told.output.contains("alive"), "SUP-2, NODE-5");
}

#[test]
fn a_lost_task_has_the_stage_submitted_again_and_the_new_one_finishes_the_job() {
    let mut job = job(2, 2, 1);
    job.policy.node_timeout = Duration::from_millis(1500);
    let dir = phalanx_testkit::temp_dir("job");
    let driver = open(&job);
    let script = r#"[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] && { echo up $RANK; exec sleep 600; }; echo again $RANK; printf "r$RANK" > "$PHALANX_RANK_DIR/result""#;
    let node = |partition, attempt| {
        let mut options = node_options(&driver, &job, partition, script, dir.path());
        options.attempt = attempt;
        let host = TestHost::default();
        let interrupt = Arc::clone(&host.interrupt);
        (spawn_node(options, host), interrupt)
    };
    let first = [node(0, 0), node(1, 0)];
    let mut output = String::new();
    let mut next = || {
        let event = driver.next(Deadline::after(LONG)).unwrap().expect("in time");
        if let Event::Output(text) = &event {
            output.push_str(text);
        }
        (event, output.matches("up ").count())
    };
    while next().1 < 2 {}
    // As Spark does with the tasks of a stage that lost one.
    *first[1].1.lock().unwrap() = Some("its executor is going away".into());
    driver.stage_ended(0, Some("ExecutorLostFailure".into()));
    let attempt = loop {
        if let Event::Resubmit { attempt } = next().0 {
            break attempt;
        }
    };
    assert_eq!(attempt, 1);
    for (node, _) in first {
        node.join().unwrap().unwrap();
    }
    let second = [node(0, attempt), node(1, attempt)];
    let told = listen(&driver);
    assert_eq!(told.failure, None);
    for rank in 0..2 {
        assert!(told.output.contains(&format!("[rank {rank}] again {rank}")), "{}", told.output);
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("r{rank}"));
    }
    for (node, _) in second {
        node.join().unwrap().unwrap();
    }
}
