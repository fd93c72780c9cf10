//! How tasks join when some come late, or can't reach the hub by one way or by none, and processes that do nothing.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{LONG, TestCallbacks, closed, listen, open, silent, spawn_node, test_node};
use phalanx_job::{Hub, Way};
use phalanx_testkit::eventually;
use phalanx_types::{Attempt, ErrorKind, FailureKind, Job, RankProgram, Result};

/// A job of a rank on each of two nodes, which soon give a way up.
fn job() -> Job {
    let mut job = Job::new("meeting", "t", 2, 2).unwrap();
    job.policy.connect_timeout = Duration::from_millis(300);
    job.policy.node_timeout = Duration::from_secs(1);
    job.policy.grace = Duration::from_millis(300);
    job
}

/// Says that it is up, and ends with a result once it may.
fn script(dir: &Path) -> String {
    let go = dir.join("go");
    format!(
        r#"echo up $RANK; while [ ! -e {} ]; do sleep 0.02; done; printf "r$RANK" > "$PHALANX_RANK_DIR/result""#,
        go.display()
    )
}

type Node = JoinHandle<Result<()>>;

/// A node that looks for the hub at `hub`, if that is another address, and has the other way at `tunnel`.
fn node(driver: &Hub, partition: u32, hub: Option<&str>, tunnel: Option<&str>, dir: &Path) -> Node {
    let mut test = test_node(driver, partition, &script(dir), dir);
    if let Some(hub) = hub {
        test.spec.hub = hub.to_string();
    }
    test.here.other_ways = tunnel.map(|at| Way::Tunnel(at.to_string())).into_iter().collect();
    spawn_node(test, TestCallbacks::default())
}

fn ranks_are_heard_of(driver: &Hub) {
    let is_up = |rank| driver.logs().newest(rank).contains(&format!("up {rank}"));
    eventually("both ranks are heard of, live", LONG, || is_up(0) && is_up(1));
}

/// The ranks are heard of, may end, and end well.
fn all_is_well(driver: &Hub, dir: &Path, nodes: impl IntoIterator<Item = Node>) {
    ranks_are_heard_of(driver);
    std::fs::write(dir.join("go"), "").unwrap();
    assert_eq!(listen(driver).failure, None);
    for (node, rank) in nodes.into_iter().zip(0..) {
        node.join().unwrap().unwrap();
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("r{rank}"));
    }
}

#[test]
fn a_task_that_is_late_joins_like_the_others() {
    let dir = phalanx_testkit::temp_dir("meeting");
    let driver = open(&job());
    let first = node(&driver, 0, None, None, dir.path());
    // Longer than a task takes to give a way up.
    std::thread::sleep(2 * job().policy.connect_timeout);
    let late = node(&driver, 1, None, None, dir.path());
    all_is_well(&driver, dir.path(), [first, late]);
}

/// The second of two tasks can't reach the hub: what it says, and what the run says when Spark has brought that.
fn not_reached(hub: &str, tunnel: Option<&str>) -> (ErrorKind, String, String) {
    let dir = phalanx_testkit::temp_dir("meeting");
    let driver = open(&job());
    let first = node(&driver, 0, None, None, dir.path());
    let error = node(&driver, 1, Some(hub), tunnel, dir.path()).join().unwrap().unwrap_err();
    driver.stage_ended(Attempt::first(), Some(error.to_string()));
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Start);
    first.join().unwrap().unwrap();
    (error.kind(), error.to_string(), failure.message)
}

#[test]
fn a_task_that_reaches_the_hub_by_no_way_fails_in_a_sentence_that_says_what_to_set() {
    let barred = silent();
    let (kind, said, told) = not_reached(&barred.address, None);
    assert_eq!(kind, ErrorKind::Unreachable, "NODE-7: {said}");
    assert!(said.starts_with("the task of partition 1 on host-1 can't reach the driver: "), "NODE-7: {said}");
    for part in [&barred.address, "it has no other way", "spark.phalanx.hub.port", "PhalanxPlugin"] {
        assert!(said.contains(part), "NODE-7: {said}");
    }
    assert_eq!(told, said, "the run says the same");
}

#[test]
fn a_task_that_reaches_the_hub_neither_directly_nor_through_spark_says_why_of_both() {
    let (barred, nowhere) = (silent(), closed());
    let (kind, said, _) = not_reached(&barred.address, Some(&nowhere.address));
    assert_eq!(kind, ErrorKind::Unreachable, "NODE-7: {said}");
    for part in [&barred.address, "nor through Spark", &nowhere.address] {
        assert!(said.contains(part), "NODE-7: {said}");
    }
}

#[test]
fn a_task_of_a_job_that_is_over_says_so_though_it_has_another_way_and_does_not_try_that_for_long() {
    // As a tunnel does to whose far end there is no hub any more.
    let far_end = TcpListener::bind("127.0.0.1:0").unwrap();
    let tunnel = far_end.local_addr().unwrap().to_string();
    let carries = std::thread::spawn(move || far_end.incoming().take(2).for_each(drop));
    let (closed, began) = (closed(), Instant::now());
    let (_, said, _) = not_reached(&closed.address, Some(&tunnel));
    assert!(said.contains("the job is over, or a firewall refuses"), "NODE-9: {said}");
    carries.join().unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "NODE-7: it is tried twice: {:?}", began.elapsed());
}

#[test]
fn a_task_that_is_ended_while_it_connects_goes_at_once() {
    // Directly, and by a way that is tried for 15 s.
    let (barred, dir) = (silent(), phalanx_testkit::temp_dir("meeting"));
    for (connect_timeout, tunnel) in
        [(Duration::from_secs(300), None), (job().policy.connect_timeout, Some(&barred))]
    {
        let mut job = job();
        job.policy.connect_timeout = connect_timeout;
        let driver = open(&job);
        let mut test = test_node(&driver, 0, "true", dir.path());
        test.spec.hub.clone_from(&barred.address);
        test.here.other_ways = tunnel.map(|at| Way::Tunnel(at.address.clone())).into_iter().collect();
        let callbacks = TestCallbacks::default();
        let interrupt = Arc::clone(&callbacks.interrupt);
        let node = spawn_node(test, callbacks);
        std::thread::sleep(3 * self::job().policy.connect_timeout);
        assert!(!node.is_finished(), "it connects");
        let began = Instant::now();
        interrupt.lock().unwrap().replace("Spark kills the task".into());
        let error = node.join().unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Cancelled, "Spark kills the task")
        );
        assert!(began.elapsed() < Duration::from_secs(5), "NODE-12: {:?}", began.elapsed());
    }
}

#[test]
fn a_hub_that_refuses_connections_is_closed() {
    let closed = closed();
    let (kind, said, _) = not_reached(&closed.address, None);
    assert_eq!(kind, ErrorKind::Closed, "NODE-9: {said}");
    assert!(said.contains("the job is over, or a firewall refuses"), "NODE-9: {said}");
}

#[test]
fn a_process_that_does_nothing_for_a_while_loses_no_node_and_its_ranks_obey_the_driver() {
    let (dir, driver) = (phalanx_testkit::temp_dir("meeting"), open(&job()));
    let callbacks = [TestCallbacks::default(), TestCallbacks::default()];
    let stopped = [Arc::clone(&callbacks[0].stopped), Arc::clone(&callbacks[1].stopped)];
    let nodes: Vec<Node> = (0..)
        .zip(callbacks)
        .map(|(partition, callbacks)| {
            spawn_node(test_node(&driver, partition, &script(dir.path()), dir.path()), callbacks)
        })
        .collect();
    ranks_are_heard_of(&driver);
    let held = stopped.each_ref().map(|stopped| stopped.lock().unwrap());
    // Three times what a node may be silent for.
    std::thread::sleep(3 * job().policy.node_timeout);
    driver.stop("the test says so");
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Cancelled, "NODE-44: {}", failure.message);
    let states: Vec<_> = failure.ranks.iter().map(|rank| rank.describe()).collect();
    assert_eq!(states, ["stopped", "stopped"], "NODE-44, NODE-30: the order came, and its answer");
    drop(held);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn a_store_that_finds_all_its_ports_taken_fails_the_job_with_the_reason() {
    let dir = phalanx_testkit::temp_dir("meeting");
    let taken = sixteen_ports();
    let mut job = Job::new("ports", "t", 1, 1).unwrap();
    job.policy.store_port = u32::from(taken[0].local_addr().unwrap().port());
    let driver = open(&job);
    let node = spawn_node(test_node(&driver, 0, "true", dir.path()), TestCallbacks::default());
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Start);
    assert!(failure.message.contains("the store"), "{}", failure.message);
    node.join().unwrap().unwrap_err();
}

/// Listeners on as many ports in a row as a store tries.
fn sixteen_ports() -> Vec<TcpListener> {
    let all_of =
        |first: u16| (first..first + 16).map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
    (20_000..30_000).step_by(16).find_map(|first| std::io::Result::ok(all_of(first))).unwrap()
}

#[test]
fn a_task_that_has_a_tunnel_joins_at_the_hub_like_the_others() {
    // Packets to the hub vanish, or are refused.
    let (silent, closed) = (silent(), closed());
    for barred in [&silent.address, &closed.address] {
        let dir = phalanx_testkit::temp_dir("meeting");
        let driver = open(&job());
        let first = node(&driver, 0, None, None, dir.path());
        let hub =
            driver.node_spec(Attempt::first(), RankProgram::Python(None), BTreeMap::new(), Vec::new()).hub;
        let second = node(&driver, 1, Some(barred), Some(&hub), dir.path());
        // NODE-13: its output and its result come by that way, too.
        all_is_well(&driver, dir.path(), [first, second]);
    }
}
