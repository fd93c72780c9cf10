//! A node whose disk hangs before its ranks run: a file that it opens is a pipe that nobody reads.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Gather, LONG, TestCallbacks, listen, open, silent, spawn_node, test_node};
use phalanx_job::Hub;
use phalanx_testkit::eventually;
use phalanx_types::{Deadline, FailureKind, Job, Result};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// Nodes that wait for one another end later: each waits so long for a word of the hub.
const NO_WORD: Duration = Duration::from_secs(10);

type Node = JoinHandle<Result<Vec<u8>>>;

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
        seen |= format!("{event:?}").contains(what);
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
    assert_eq!(listen(&driver).failure, None, "NODEDISK-1");
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
    assert_eq!(failure.kind, FailureKind::Cancelled, "NODEDISK-1: {}", failure.message);
    assert!(!nodes[1].is_finished(), "NODEDISK-1: the hub heard of its end before the disk answered");
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
    assert_eq!(listen(&driver).failure, None, "NODEDISK-1: {told}");
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
        "NODEDISK-2: {failure:?}"
    );
    let disk = answers(&pipe);
    let ends: Vec<_> = nodes.into_iter().map(|node| node.join().unwrap()).collect();
    assert!(ends[1].as_ref().unwrap_err().to_string().contains("has not answered"), "NODEDISK-2: {ends:?}");
    drop(disk);
}

#[test]
fn a_node_without_the_hub_waits_for_no_word_of_it_when_its_disk_hangs() {
    let dir = phalanx_testkit::temp_dir("disk");
    let mut job = job();
    job.policy.connect_timeout = Duration::from_millis(500);
    let (driver, gather, nowhere) = (open(&job), Gather::of(2), silent());
    let ([first_disk, disk], pipe) = disks(dir.path());
    let interrupt = Arc::new(Mutex::new(None));
    let callbacks = |partition| TestCallbacks {
        gather: Some(Arc::clone(&gather)),
        partition,
        interrupt: Arc::clone(&interrupt),
        ..TestCallbacks::default()
    };
    let first = spawn_node(test_node(&driver, 0, "sleep 600", &first_disk), callbacks(0));
    let mut test = test_node(&driver, 1, RETURNS, &disk);
    test.spec.hub.clone_from(&nowhere.address);
    let node = spawn_node(test, callbacks(1));
    eventually("the nodes have met", LONG, || !gather.texts().is_empty());
    *interrupt.lock().unwrap() = Some("Spark kills the tasks".into());
    std::thread::sleep(Duration::from_secs(1));
    let (disk, answered) = (answers(&pipe), Instant::now());
    let error = node.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("Spark kills the tasks"), "NODEDISK-1: {error}");
    assert!(answered.elapsed() < Duration::from_secs(5), "NODEDISK-1: {:?}", answered.elapsed());
    drop(disk);
    driver.stop("the test is over");
    listen(&driver);
    // Whether the hub has heard of its end before it was over is not what this is about.
    let _ = first.join().unwrap();
}

#[test]
fn a_node_that_is_ended_while_its_disk_hangs_lets_the_store_go() {
    // The store is partition 0's: it waits for the node whose disk hangs, or is that node. Where ranks may start again
    // the hub keeps who is done until all are.
    for (without_hub, hangs, max_restarts) in [(0, 1, 0), (1, 0, 1), (1, 2, 1)] {
        let mut job = Job::new("disk", "t", 3, 3).unwrap();
        job.policy = self::job().policy;
        job.policy.connect_timeout = Duration::from_millis(500);
        job.policy.max_restarts = max_restarts;
        let (dir, driver) = (phalanx_testkit::temp_dir("disk"), open(&job));
        let (disks, pipe) = disks(dir.path());
        let (gather, nowhere) = (Gather::of(3), silent());
        // Late enough for the third node to be at its disk.
        let script = format!("[ $RANK = {without_hub} ] || exec sleep 600; sleep 1; exit 7");
        let nodes: Vec<Node> = (0..3)
            .map(|partition| {
                let disk = &disks[usize::from(partition == hangs)];
                let mut test = test_node(&driver, partition, &script, disk);
                if partition == without_hub {
                    test.spec.hub.clone_from(&nowhere.address);
                }
                let gather = Some(Arc::clone(&gather));
                spawn_node(test, TestCallbacks { gather, partition, ..TestCallbacks::default() })
            })
            .collect();
        tells_of(&driver, "rank ended");
        // The hub's order is on its way. The disk answers late enough for it.
        std::thread::sleep(Duration::from_millis(500));
        let disk = answers(&pipe);
        for node in nodes {
            eventually("FALLBACK-3: a node ends", NO_WORD, || node.is_finished());
            node.join().unwrap().unwrap();
        }
        drop(disk);
    }
}
