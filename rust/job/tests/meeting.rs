//! How tasks meet when some come late, or can't reach the hub for a while or for good, and processes that do nothing.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;
#[path = "common/outage.rs"]
mod outage;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{Gather, LONG, TestCallbacks, closed, listen, open, silent, spawn_node, test_node};
use outage::{Network, Outage};
use phalanx_job::Hub;
use phalanx_testkit::eventually;
use phalanx_types::{ErrorKind, FailureKind, Job, RankProgram, Result};

/// A job of a rank on each of two nodes, whose hub asks soon who can't reach it.
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

type Node = JoinHandle<Result<Vec<u8>>>;

fn node(driver: &Hub, hub: Option<&str>, partition: u32, dir: &Path, gather: &Arc<Gather>) -> Node {
    let mut test = test_node(driver, partition, &script(dir), dir);
    if let Some(hub) = hub {
        test.spec.hub = hub.to_string();
    }
    let gather = Some(Arc::clone(gather));
    spawn_node(test, TestCallbacks { gather, partition, ..TestCallbacks::default() })
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
        assert!(node.join().unwrap().unwrap().is_empty(), "nothing goes through Spark");
        let result = std::fs::read_to_string(driver.result_path(rank).unwrap()).unwrap();
        assert_eq!(result, format!("r{rank}"));
    }
}

#[test]
fn a_task_that_is_only_late_joins_at_the_hub_like_the_others() {
    let (dir, gather) = (phalanx_testkit::temp_dir("meeting"), Gather::of(2));
    let driver = open(&job());
    let first = node(&driver, None, 0, dir.path(), &gather);
    eventually("the first asks who can't reach the hub", LONG, || gather.asked().len() == 1);
    let late = node(&driver, None, 1, dir.path(), &gather);
    eventually("the late one answers", LONG, || gather.asked().len() == 2);
    assert!(gather.asked().iter().all(|text| text.contains(r#""at_hub":true"#)), "JOIN-3");
    all_is_well(&driver, dir.path(), [first, late]);
}

#[test]
fn a_node_that_met_the_others_through_spark_tells_the_hub_everything_once_it_reaches_it() {
    let (dir, gather) = (phalanx_testkit::temp_dir("meeting"), Gather::of(2));
    let driver = open(&job());
    let network = Network::before(driver.address());
    network.fails(Outage::Pause);
    let with_hub = node(&driver, None, 0, dir.path(), &gather);
    let without = node(&driver, Some(&network.address), 1, dir.path(), &gather);
    eventually("the rank without the hub runs", LONG, || {
        let log = std::fs::read_to_string(dir.path().join("phalanx-meeting/rank-1.log"));
        log.is_ok_and(|log| log.contains("up 1"))
    });
    assert_eq!(driver.logs().newest(1), "", "SEARCH-1: it goes on meanwhile");
    network.works();
    all_is_well(&driver, dir.path(), [with_hub, without]);
}

#[test]
fn a_hub_that_refuses_connections_is_closed_and_nobody_goes_round_it() {
    let (dir, gather) = (phalanx_testkit::temp_dir("meeting"), Gather::of(2));
    let driver = open(&job());
    let closed = closed();
    let node = node(&driver, Some(&closed.address), 0, dir.path(), &gather);
    let error = node.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "LINK-5: {error}");
    assert!(error.to_string().starts_with("the job is over"), "{error}");
    assert_eq!(gather.asked().len(), 0, "LINK-5");
}

#[test]
fn ranks_whose_nodes_met_through_spark_end_when_the_hub_turns_out_to_be_closed() {
    let (dir, gather) = (phalanx_testkit::temp_dir("meeting"), Gather::of(2));
    let driver = open(&job());
    let nowhere = silent();
    let nodes = [0, 1].map(|rank| node(&driver, Some(&nowhere.address), rank, dir.path(), &gather));
    eventually("both ranks run", LONG, || {
        (0..2).all(|rank| dir.path().join(format!("phalanx-meeting/rank-{rank}.log")).exists())
    });
    drop(nowhere);
    for node in nodes {
        let error = node.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("the driver is gone"), "NODE-3, LINK-5: {error}");
    }
}

#[test]
fn a_process_that_does_nothing_for_a_while_loses_no_node_and_its_ranks_heed_the_driver() {
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
    assert_eq!(failure.kind, FailureKind::Cancelled, "NODE-6: {}", failure.message);
    let states: Vec<&str> = failure.ranks.iter().map(|rank| rank.state.as_str()).collect();
    assert_eq!(states, ["stopped", "stopped"], "NODE-6, PROCESS-1: the order came, and its answer");
    drop(held);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn a_cancel_is_answered_while_spark_has_the_tasks_wait_for_one_another() {
    let (dir, gather) = (phalanx_testkit::temp_dir("meeting"), Gather::of(2));
    let driver = open(&job());
    let waiting = node(&driver, None, 0, dir.path(), &gather);
    eventually("it asks who can't reach the hub", LONG, || gather.asked().len() == 1);
    let began = Instant::now();
    driver.stop("the test says so");
    assert_eq!(listen(&driver).failure.unwrap().kind, FailureKind::Cancelled);
    assert!(began.elapsed() < LONG / 2, "JOIN-3: the exchange goes on until Spark ends it");
    assert!(!waiting.is_finished(), "the exchange goes on until Spark ends it");
    gather.exchange(1, "");
    waiting.join().unwrap().unwrap();
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

/// A node that can reach the hub through a tunnel at most, whose near end is at `tunnel`. It can't meet the others
/// through Spark.
fn node_with_tunnel(driver: &Hub, hub: &str, tunnel: &str, dir: &Path) -> Node {
    let mut test = test_node(driver, 1, &script(dir), dir);
    test.spec.hub = hub.to_string();
    test.here.tunnel = Some(tunnel.to_string());
    spawn_node(test, TestCallbacks { partition: 1, ..TestCallbacks::default() })
}

#[test]
fn a_task_that_has_a_tunnel_joins_at_the_hub_like_the_others() {
    // Packets to the hub vanish, or are refused.
    let (silent, closed) = (silent(), closed());
    for barred in [&silent.address, &closed.address] {
        let (dir, alone) = (phalanx_testkit::temp_dir("meeting"), Gather::of(2));
        let driver = open(&job());
        let first = node(&driver, None, 0, dir.path(), &alone);
        let hub = driver.node_spec(0, RankProgram::Python(None), BTreeMap::new(), Vec::new()).hub;
        let second = node_with_tunnel(&driver, barred, &hub, dir.path());
        all_is_well(&driver, dir.path(), [first, second]);
        assert!(alone.asked().is_empty(), "ROUTE-1: no task was asked to exchange");
    }
}

#[test]
fn a_tunnel_that_leads_nowhere_is_as_none() {
    let (dir, gather) = (phalanx_testkit::temp_dir("meeting"), Gather::of(2));
    let (driver, barred, nowhere) = (open(&job()), silent(), closed());
    let first = node(&driver, None, 0, dir.path(), &gather);
    let mut test = test_node(&driver, 1, &script(dir.path()), dir.path());
    test.spec.hub = barred.address.clone();
    test.here.tunnel = Some(nowhere.address.clone());
    let gathers = Some(Arc::clone(&gather));
    let second =
        spawn_node(test, TestCallbacks { gather: gathers, partition: 1, ..TestCallbacks::default() });
    eventually("the nodes meet through Spark", LONG, || gather.texts().len() == 2);
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert!(first.join().unwrap().unwrap().is_empty());
    driver.node_report(&second.join().unwrap().unwrap()).unwrap();
    driver.stage_ended(0, None);
    assert_eq!(listen(&driver).failure, None);
}
