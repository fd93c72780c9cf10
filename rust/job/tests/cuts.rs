//! Connections that break while a job runs: a proxy between node and hub cuts them.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{TestCallbacks, listen, open, spawn_node, test_node};
use phalanx_testkit::Proxy;
use phalanx_types::Job;

/// A proxy before `hub`. Of the connections with the numbers `which` those are cut that have passed `after` bytes,
/// `most` of them. What they carry is encrypted; but a node opens one for control first, one for output next, and one
/// for each result when it is there.
fn cutting_proxy(hub: &str, which: RangeInclusive<usize>, after: u64, most: usize) -> Proxy {
    let cuts = AtomicUsize::new(0);
    Proxy::before(hub, move |number, passed| {
        let may_cut = |done: usize| (done < most).then_some(done + 1);
        which.contains(&number)
            && passed >= after
            && cuts.fetch_update(Ordering::SeqCst, Ordering::SeqCst, may_cut).is_ok()
    })
}

#[test]
fn a_connection_for_output_that_breaks_is_opened_again_and_nothing_is_lost_or_doubled() {
    let lines = 100_000;
    let job = Job::new("cuts", "t", 2, 1).unwrap();
    let dir = phalanx_testkit::temp_dir("cuts");
    let driver = open(&job);
    let proxy = cutting_proxy(driver.address(), 2..=usize::MAX, 50_000, 3);
    // Slow enough that the relay is at work when the connection breaks.
    let script = format!("seq 1 {0}; sleep 0.3; seq {1} {lines}", lines / 2, lines / 2 + 1);
    let mut test = test_node(&driver, 0, &script, dir.path());
    test.spec.hub.clone_from(&proxy.address);
    let node = spawn_node(test, TestCallbacks::default());
    let told = listen(&driver);
    node.join().unwrap().unwrap();
    assert_eq!(told.failure, None, "D4");
    assert!(proxy.cuts() > 0, "the proxy has cut");
    for rank in 0..2 {
        let prefix = format!("[rank {rank}] ");
        let seen = told.output.lines().filter_map(|line| line.strip_prefix(&prefix));
        let wrong = seen.zip(1..).find(|(line, n)| *line != n.to_string());
        assert_eq!(wrong, None, "NODE-28: every line of rank {rank}, once");
        let last = format!("{prefix}{lines}");
        assert!(told.output.lines().any(|line| line == last), "NODE-28: rank {rank}'s last line");
    }
}

/// Passes bytes on to `hub`, but those of the third connection, which is a result's, only after `delay`.
fn delaying_proxy(hub: String, delay: Duration) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for (number, client) in (1..).zip(listener.incoming()) {
            let (mut client, Ok(mut server)) = (client.unwrap(), TcpStream::connect(&hub)) else { continue };
            let (mut back, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut to_client);
                let _ = to_client.shutdown(Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut first = [0; 4096];
                let n = client.read(&mut first).unwrap_or(0);
                if number == 3 {
                    std::thread::sleep(delay);
                }
                let _ = server.write_all(&first[..n]);
                let _ = std::io::copy(&mut client, &mut server);
                let _ = server.shutdown(Shutdown::Both);
            });
        }
    });
    address
}

#[test]
fn a_node_whose_result_takes_longer_than_the_node_time_out_is_not_lost() {
    let mut job = Job::new("cuts", "t", 1, 1).unwrap();
    job.policy.node_timeout = Duration::from_secs(1);
    let dir = phalanx_testkit::temp_dir("cuts");
    let driver = open(&job);
    let script = r#"sleep 2; printf whole > "$PHALANX_RANK_DIR/result""#;
    let mut test = test_node(&driver, 0, script, dir.path());
    test.spec.hub = delaying_proxy(driver.address().into(), Duration::from_secs(3));
    let node = spawn_node(test, TestCallbacks::default());
    let told = listen(&driver);
    node.join().unwrap().unwrap();
    assert_eq!(told.failure, None);
    assert_eq!(std::fs::read_to_string(driver.result_path(0).unwrap()).unwrap(), "whole");
}

#[test]
fn a_control_connection_that_breaks_is_opened_again_and_the_job_goes_on() {
    let job = Job::new("cuts", "t", 2, 1).unwrap();
    let dir = phalanx_testkit::temp_dir("cuts");
    let driver = open(&job);
    // The handshake and the join are about 700 bytes; the ranks' starts come after.
    let proxy = cutting_proxy(driver.address(), 1..=1, 1000, 1);
    let script = r#"echo up; sleep 0.5; printf done > "$PHALANX_RANK_DIR/result""#;
    let mut test = test_node(&driver, 0, script, dir.path());
    test.spec.hub.clone_from(&proxy.address);
    let node = spawn_node(test, TestCallbacks::default());
    let told = listen(&driver);
    node.join().unwrap().unwrap();
    assert_eq!(told.failure, None);
    assert_eq!(proxy.cuts(), 1, "the proxy has cut");
    for rank in 0..2 {
        assert!(driver.result_path(rank).is_some());
    }
}

#[test]
fn a_result_whose_connections_break_again_and_again_goes_on_where_the_hub_has_it() {
    let job = Job::new("cuts", "t", 1, 1).unwrap();
    let dir = phalanx_testkit::temp_dir("cuts");
    let driver = open(&job);
    // No connection carries as much as the result has, so it never comes by one that begins at 0.
    let proxy = cutting_proxy(driver.address(), 2..=usize::MAX, 500_000, usize::MAX);
    let script =
        r#"seq 1 500000 > "$PHALANX_RANK_DIR/r"; mv "$PHALANX_RANK_DIR/r" "$PHALANX_RANK_DIR/result""#;
    let mut test = test_node(&driver, 0, script, dir.path());
    test.spec.hub.clone_from(&proxy.address);
    let node = spawn_node(test, TestCallbacks::default());
    assert_eq!(listen(&driver).failure, None);
    node.join().unwrap().unwrap();
    let lines = std::fs::read_to_string(driver.result_path(0).unwrap()).unwrap();
    assert!(lines.lines().map(str::to_string).eq((1..=500_000).map(|n| n.to_string())), "NODE-3");
    assert!(proxy.cuts() >= 5, "the proxy has cut {} times", proxy.cuts());
    // Of each connection its handshake, and a frame that had not arrived whole.
    let most = lines.len() as u64 + 100_000 * (proxy.cuts() + 1);
    assert!(proxy.passed_bytes() <= most, "NODE-3: {} bytes for {}", proxy.passed_bytes(), lines.len());
}
