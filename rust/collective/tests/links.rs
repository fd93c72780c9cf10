//! Hosts joined by links that are slow, stall, and are cut, and that count what crosses them: GROUP-37, GROUP-68,
//! GROUP-52, GROUP-45, GROUP-46.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::sync::Barrier;
use std::time::Duration;

use common::links::{Links, Speed};
use common::{options, program};
use phalanx_collective::{Group, GroupOptions, ReduceOp};
use phalanx_testkit::leaks;
use phalanx_types::{Error, ErrorKind};

/// Runs one rank a thread, each a host of its own.
fn world<T: Send>(ranks: usize, links: &Links, run: impl Fn(Group) -> T + Sync) -> Vec<T> {
    world_of_hosts(ranks, ranks, links, run)
}

/// Runs one rank a thread, on so many hosts in turn.
fn world_of_hosts<T: Send>(
    ranks: usize,
    hosts: usize,
    links: &Links,
    run: impl Fn(Group) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let start = |rank| {
            let run = &run;
            scope.spawn(move || {
                let options =
                    GroupOptions { pretended_host: Some((rank % hosts) as u32), ..options(rank, ranks) };
                run(Group::join(options, &mut links.through(rank)).unwrap())
            })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn delay_and_little_bandwidth_cost_time_but_no_correctness() {
    let _leaks = leaks();
    let links = Links::new(Speed { delay: Duration::from_millis(20), bytes_per_second: 4 << 20 });
    world(3, &links, |mut group| {
        program::run(&mut group, 5, 8);
        let mut numbers = vec![group.rank() as f32; 100_000];
        group.all_reduce_of(&mut numbers, ReduceOp::Sum).unwrap();
        assert!(numbers.iter().all(|number| *number == 3.0));
    });
    links.end();
}

#[test]
fn a_long_all_reduce_crosses_once_a_host_in_as_many_channels_as_a_host_has_ranks() {
    let _leaks = leaks();
    let links = Links::new(Speed::default());
    const BYTES: usize = 4 << 20;
    world_of_hosts(4, 2, &links, |mut group| {
        assert_eq!(group.topology().hosts, [vec![0, 2], vec![1, 3]]);
        let mut numbers = vec![group.rank() as f32; BYTES / 4];
        group.all_reduce_of(&mut numbers, ReduceOp::Sum).unwrap();
        assert!(numbers.iter().all(|number| *number == 6.0));
    });
    let (little, crossed) = (BYTES / 100, links.bytes());
    // GROUP-45: each host sends half of the sum's parts and the other half's results, both ways.
    let all: usize = crossed.values().sum();
    assert!(all.abs_diff(2 * BYTES) < little, "{crossed:?}");
    // GROUP-46: the i-th of one host with the i-th of the other.
    for (pair, bytes) in &crossed {
        let half = if [(0, 1), (2, 3)].contains(pair) { BYTES } else { 0 };
        assert!(bytes.abs_diff(half) < little, "{crossed:?}");
    }
    links.end();
}

#[test]
fn a_link_that_stalls_past_the_deadline_is_a_timeout_that_names_the_peer() {
    // GROUP-37, GROUP-52. The connections stand, and kernels answer: nobody has died.
    let _leaks = leaks();
    let links = Links::new(Speed::default());
    let stalled = Barrier::new(2);
    let errors = world(2, &links, |mut group| {
        group.barrier().unwrap();
        if stalled.wait().is_leader() {
            links.stall();
        }
        stalled.wait();
        group.set_timeout(Duration::from_millis(1500));
        let error = group.all_reduce_of(&mut vec![1.0f32; 500_000], ReduceOp::Sum).unwrap_err();
        stalled.wait();
        // So that leaving doesn't take its patience.
        links.resume();
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        assert!(error.to_string().contains(&format!("still waiting for rank {}", 1 - rank)), "{error}");
    }
    links.end();
}

#[test]
fn a_stall_that_ends_in_time_is_no_failure() {
    let _leaks = leaks();
    let links = Links::new(Speed::default());
    world(2, &links, |mut group| {
        group.barrier().unwrap();
        if group.rank() == 0 {
            links.stall();
            std::thread::sleep(Duration::from_millis(1500));
            links.resume();
        }
        let mut numbers = vec![1.0f32; 500_000];
        group.all_reduce_of(&mut numbers, ReduceOp::Sum).unwrap();
        assert!(numbers.iter().all(|number| *number == 2.0));
    });
    links.end();
}

#[test]
fn a_cut_in_the_middle_of_an_operation_fails_all_ranks() {
    // GROUP-68
    let _leaks = leaks();
    let links = Links::new(Speed { bytes_per_second: 4 << 20, ..Speed::default() });
    let errors: Vec<Error> = world(3, &links, |mut group| {
        group.barrier().unwrap();
        // Takes a second.
        let mut numbers = vec![1.0f32; 2_000_000];
        std::thread::scope(|scope| {
            if group.rank() == 0 {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    links.cut(2);
                });
            }
            group.all_reduce_of(&mut numbers, ReduceOp::Sum).unwrap_err()
        })
    });
    for (rank, error) in errors.iter().enumerate() {
        let culprit = if rank == 2 { "rank " } else { "rank 2 " };
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        assert!(error.to_string().contains("died or can't be reached"), "{error}");
        assert!(error.to_string().contains(culprit), "{error}");
    }
    links.end();
}
