//! A node whose disk hangs before its ranks run: a file that it opens is a pipe that nobody reads.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{LONG, TestCallbacks, listen, open, spawn_node, test_node};
use phalanx_job::Hub;
use phalanx_testkit::eventually;
use phalanx_types::{Deadline, FailureKind, Job, RankProgram, Result};
use rustix::fs::{CWD, FileType, Mode, mknodat};

type Node = JoinHandle<Result<()>>;

fn job() -> Job {
    let mut job = Job::new("disk", "t", 2, 2).unwrap();
    // Four pings; with 1 s a busy machine was late for them, once in many runs.
    job.policy.node_timeout = Duration::from_secs(2);
    job.policy.grace = Duration::from_millis(300);
    job
}

const RETURNS: &str = r#"printf "r$RANK" > "$PHALANX_RANK_DIR/result""#;

/// The disks of two nodes. That of the second one hangs until the pipe is read.
fn disks(dir: &Path) -> ([PathBuf; 2], PathBuf) {
    let disks = [0, 1].map(|partition| dir.join(format!("disk-{partition}")));
    let folder = disks[1].join("phalanx-disk");
    for folder in [&disks[0], &folder] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let pipe = folder.join(".in-use");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    (disks, pipe)
}

/// Two nodes with these disks, and the pipe.
fn nodes(driver: &Hub, dir: &Path, script: &str) -> (Vec<Node>, PathBuf) {
    let (disks, pipe) = disks(dir);
    let nodes = (0..)
        .zip(&disks)
        .map(|(at, disk)| spawn_node(test_node(driver, at, script, disk), TestCallbacks::default()));
    (nodes.collect(), pipe)
}

/// Has the disk answer, for as long as the value lives.
fn answers(pipe: &Path) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(pipe).unwrap()
}

fn all_have_joined(driver: &Hub) {
    tells_of(driver, "all joined");
}

/// The driver has an event that says so.
fn tells_of(driver: &Hub, what: &str) {
    let mut seen = false;
    eventually(what, LONG, || {
        let event = driver.next(Deadline::after(Duration::from_millis(100))).unwrap();
        seen |= event.is_some_and(|event| event.pack().iter().any(|text| text.contains(what)));
        seen
    });
}

#[test]
fn a_disk_that_hangs_before_the_ranks_run_loses_no_node() {
    let (dir, driver) = (phalanx_testkit::temp_dir("disk"), open(&job()));
    let (nodes, pipe) = nodes(&driver, dir.path(), RETURNS);
    all_have_joined(&driver);
    // Three times what a node may be silent for.
    std::thread::sleep(3 * job().policy.node_timeout);
    let disk = answers(&pipe);
    assert_eq!(listen(&driver).failure, None, "NODE-20");
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    drop(disk);
    assert_eq!(std::fs::read_to_string(driver.result_path(1).unwrap()).unwrap(), "r1");
}

#[test]
fn a_cancel_is_answered_while_the_disk_hangs_before_the_ranks_run() {
    let (dir, driver) = (phalanx_testkit::temp_dir("disk"), open(&job()));
    let (nodes, pipe) = nodes(&driver, dir.path(), RETURNS);
    all_have_joined(&driver);
    driver.stop("the test says so");
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Cancelled, "NODE-20: {}", failure.message);
    assert!(!nodes[1].is_finished(), "NODE-20: the hub heard of its end before the disk answered");
    let disk = answers(&pipe);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    drop(disk);
}

#[test]
fn a_node_whose_disk_hung_through_a_restart_takes_part_in_the_next_attempt() {
    let dir = phalanx_testkit::temp_dir("disk");
    let mut job = job();
    job.policy.max_restarts = 1;
    let driver = open(&job);
    let script = format!(r#"[ "$RANK$TORCHELASTIC_RESTART_COUNT" != 00 ] || kill -9 $$; {RETURNS}"#);
    let (nodes, pipe) = nodes(&driver, dir.path(), &script);
    let mut told = String::new();
    eventually("the ranks start again", LONG, || {
        told += &format!("{:?}", driver.next(Deadline::after(Duration::from_millis(100))).unwrap());
        told.contains("restart 1")
    });
    // Longer than a node may be silent for.
    std::thread::sleep(2 * job.policy.node_timeout);
    let disk = answers(&pipe);
    assert_eq!(listen(&driver).failure, None, "NODE-20: {told}");
    for node in nodes {
        node.join().unwrap().unwrap();
    }
    drop(disk);
    assert_eq!(std::fs::read_to_string(driver.result_path(1).unwrap()).unwrap(), "r1");
}

#[test]
fn a_disk_that_never_answers_fails_the_job_with_a_sentence_that_names_it() {
    let dir = phalanx_testkit::temp_dir("disk");
    let mut job = job();
    job.policy.join_timeout = Duration::from_secs(2);
    let driver = open(&job);
    let (nodes, pipe) = nodes(&driver, dir.path(), "sleep 600");
    let failure = listen(&driver).failure.unwrap();
    assert!(
        failure.message.contains("the disk for its files has not answered for 2s"),
        "NODE-21: {failure:?}"
    );
    let disk = answers(&pipe);
    let ends: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
    assert!(ends[1].as_ref().unwrap_err().to_string().contains("has not answered"), "NODE-21: {ends:?}");
    drop(disk);
}

/// A node that waits for a pool which imports for ever, and notes in `begun` that it has begun to.
fn waiting_for_a_pool(driver: &Hub, dir: &Path, callbacks: TestCallbacks) -> Node {
    use std::os::unix::fs::PermissionsExt as _;
    let python = dir.join("python");
    std::fs::write(&python, format!("#!/bin/sh\ntouch {0}/begun-$$\nexec sleep 600\n", dir.display()))
        .unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut test = test_node(driver, 0, "exit 9", dir);
    test.spec.program = RankProgram::Python(Some(python.display().to_string()));
    let node = spawn_node(test, callbacks);
    eventually("the pool imports", LONG, || begun(dir) == 1);
    node
}

fn begun(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with("begun")).count()
}

#[test]
fn a_stop_is_answered_while_a_node_waits_for_its_pool_and_no_rank_starts() {
    let dir = phalanx_testkit::temp_dir("pool");
    let mut job = Job::new("pool", "t", 1, 1).unwrap();
    job.warm.enabled = true;
    let driver = open(&job);
    let node = waiting_for_a_pool(&driver, dir.path(), TestCallbacks::default());
    let began = Instant::now();
    driver.stop("the test says so");
    assert_eq!(listen(&driver).failure.unwrap().kind, FailureKind::Cancelled);
    node.join().unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "NODE-18: a pool is waited for 60 s");
    assert_eq!(begun(dir.path()), 1, "NODE-18: no rank has started cold");
}

#[test]
fn a_node_whose_process_ends_while_it_waits_for_its_pool_starts_no_rank() {
    let dir = phalanx_testkit::temp_dir("pool");
    let mut job = Job::new("pool", "t", 1, 1).unwrap();
    job.warm.enabled = true;
    let driver = open(&job);
    let callbacks = TestCallbacks::default();
    let interrupt = Arc::clone(&callbacks.interrupt);
    let node = waiting_for_a_pool(&driver, dir.path(), callbacks);
    let began = Instant::now();
    interrupt.lock().unwrap().replace("its task was killed".into());
    let failure = listen(&driver).failure.unwrap();
    assert!(failure.message.contains("its task was killed"), "NODE-18: {}", failure.message);
    node.join().unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "NODE-18");
    assert_eq!(begun(dir.path()), 1, "NODE-18: no rank has started cold");
}
