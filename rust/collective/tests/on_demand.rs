//! Connections between hosts that are opened when an operation first needs them: GROUP-18, GROUP-20, GROUP-37,
//! GROUP-13, GROUP-14, GROUP-15, GROUP-16, GROUP-70, GROUP-62, GROUP-52.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use common::links::{Links, Speed};
use common::{LONG, options, world_with};
use phalanx_collective::{Group, GroupOptions, HashStore, ReduceOp};
use phalanx_testkit::{eventually, leaks};
use phalanx_types::ErrorKind;

/// In this time the door has done what it is at.
const SETTLE: Duration = Duration::from_secs(5);
/// So many elements of float32 that they cross between hosts over all connections.
const LONG_SUM: usize = 4 << 20;

fn on_hosts(hosts: usize, options: GroupOptions) -> GroupOptions {
    GroupOptions { pretended_host: Some((options.rank % hosts) as u32), ..options }
}

/// Waits until so many connections are open, on all ranks.
fn have_open(group: &Group, expected: usize, all: &Barrier) {
    let (start, mut count) = (Instant::now(), group.connections());
    while count != expected && start.elapsed() < SETTLE {
        std::thread::sleep(Duration::from_millis(1));
        count = group.connections();
    }
    // Before any goes on.
    all.wait();
    assert_eq!(count, expected, "GROUP-13, GROUP-14");
}

fn sums(group: &mut Group, elements: usize) {
    let mut numbers = vec![group.rank() as f32; elements];
    group.all_reduce_of(&mut numbers, ReduceOp::Sum).unwrap();
    let expected = (0..group.world_size()).sum::<usize>() as f32;
    assert!(numbers.iter().all(|number| *number == expected));
}

#[test]
fn a_group_opens_what_its_operations_need_and_no_more() {
    let _leaks = leaks();
    for encryption in [false, true] {
        let change = |options| GroupOptions { encryption, ..on_hosts(4, options) };
        let all = Barrier::new(8);
        world_with(8, change, |group| {
            // A sentinel to a rank of each host that is one or two hosts away (GROUP-80).
            let formed = 3;
            have_open(group, formed, &all);
            // A ring of each local rank's own: two neighbours with two connections each.
            sums(group, LONG_SUM);
            have_open(group, formed + 4, &all);
            sums(group, LONG_SUM);
            have_open(group, formed + 4, &all);
            // A message to each other, across, to ranks that are no neighbours: both send first.
            let other = 7 - group.rank();
            group.send(&[group.rank() as u8], other, 0).unwrap();
            let mut said = [0];
            group.recv(&mut said, Some(other), 0).unwrap();
            assert_eq!(said, [other as u8]);
            have_open(group, formed + 6, &all);
        });
    }
}

#[test]
fn what_a_rank_has_open_grows_as_the_logarithm_of_the_hosts() {
    // GROUP-13, GROUP-80: two sentinels for each power of two below half of the hosts, one for
    // half of them.
    let _leaks = leaks();
    for (hosts, sentinels) in [(2, 1), (4, 3), (8, 5), (16, 7)] {
        let all = Barrier::new(hosts);
        world_with(hosts, |options| on_hosts(hosts, options), |group| have_open(group, sentinels, &all));
    }
}

#[test]
fn a_message_from_a_rank_that_has_left_and_was_no_neighbour_is_not_waited_for() {
    // GROUP-18, GROUP-16, GROUP-70
    let _leaks = leaks();
    const RANKS: usize = 12;
    // It leaves while there is no connection yet, or before one is asked for.
    for pause in [0, 300].map(Duration::from_millis) {
        let is_over = Barrier::new(RANKS - 1);
        world_with(
            RANKS,
            |options| on_hosts(RANKS, options),
            |group| {
                if group.rank() == 0 {
                    std::thread::sleep(pause);
                    let error = group.recv(&mut [0], Some(3), 0).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::PeerLost, "GROUP-18: {error}");
                    assert!(error.to_string().contains("rank 3 has left the group"), "GROUP-18: {error}");
                }
                if group.rank() != 3 {
                    is_over.wait();
                }
            },
        );
    }
}

#[test]
fn a_first_message_reaches_a_rank_that_computes() {
    // GROUP-62, GROUP-20: its program does nothing for it.
    let _leaks = leaks();
    let is_sent = Barrier::new(2);
    world_with(
        2,
        |options| on_hosts(2, options),
        |group| {
            if group.rank() == 0 {
                group.send(&[5; 100], 1, 3).unwrap();
                eventually("it is handed over", LONG, || {
                    group.progress(Duration::from_millis(1)).unwrap();
                    !group.has_unsent()
                });
            }
            is_sent.wait();
            if group.rank() == 1 {
                let mut message = [0; 100];
                group.recv(&mut message, None, 3).unwrap();
                assert_eq!(message, [5; 100]);
            }
        },
    );
}

#[test]
fn a_message_to_a_rank_that_has_left_says_so_though_none_was_sent_before() {
    // GROUP-70, GROUP-15
    let _leaks = leaks();
    for sends in [true, false] {
        world_with(
            2,
            |options| on_hosts(2, options),
            |group| {
                if group.rank() == 1 {
                    return;
                }
                let start = Instant::now();
                let result = loop {
                    // What is handed over before it leaves is lost with it.
                    let result = match sends {
                        true => {
                            group.send(&[0], 1, 0).and_then(|()| group.progress(Duration::from_millis(1)))
                        }
                        false => group.recv(&mut [0], Some(1), 0).map(|_| false),
                    };
                    if result.is_err() || start.elapsed() > LONG {
                        break result;
                    }
                };
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PeerLost, "GROUP-70: {error}");
                let said = error.to_string();
                assert!(said.contains("rank 1 has left") || sends && said.contains("rank 1 can't"), "{said}");
            },
        );
    }
}

/// Two ranks on links over which nothing comes any more, before they have opened any connection but the sentinels.
fn stalled<T: Send>(run: impl Fn(Group, &Links) -> T + Sync) -> Vec<T> {
    let links = Links::new(Speed::default());
    let is_stalled = Barrier::new(2);
    let results = std::thread::scope(|scope| {
        let start = |rank| {
            let (links, run, is_stalled) = (&links, &run, &is_stalled);
            scope.spawn(move || {
                let group = Group::join(on_hosts(2, options(rank, 2)), &mut links.through(rank)).unwrap();
                if is_stalled.wait().is_leader() {
                    links.stall();
                }
                is_stalled.wait();
                run(group, links)
            })
        };
        let threads: Vec<_> = (0..2).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    links.end();
    results
}

#[test]
fn a_connection_that_is_not_opened_by_the_deadline_is_a_timeout_that_names_the_peer() {
    // GROUP-37, GROUP-52
    let _leaks = leaks();
    let both = Barrier::new(2);
    stalled(|mut group, links| {
        group.set_timeout(Duration::from_millis(500));
        let start = Instant::now();
        let error = group.barrier().unwrap_err();
        let other = format!("still waiting for rank {}", 1 - group.rank());
        assert_eq!(error.kind(), ErrorKind::Timeout, "GROUP-37: {error}");
        assert!(error.to_string().contains(&other), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
        both.wait();
        links.resume();
    });
}

#[test]
fn an_abort_ends_the_opening_of_a_connection_and_leaving_leaves_nothing_of_it() {
    // GROUP-52, GROUP-20
    let _leaks = leaks();
    let both = Barrier::new(2);
    stalled(|mut group, links| {
        let aborter = group.aborter();
        let start = Instant::now();
        let error = std::thread::scope(|scope| {
            scope.spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                aborter.abort("the test says so");
            });
            group.barrier().unwrap_err()
        });
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
        assert!(start.elapsed() < Duration::from_secs(5));
        both.wait();
        drop(group);
        both.wait();
        links.resume();
    });
}

#[test]
fn a_stall_that_ends_while_a_connection_is_being_opened_costs_time_and_nothing_else() {
    let _leaks = leaks();
    stalled(|mut group, links| {
        std::thread::scope(|scope| {
            if group.rank() == 0 {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(300));
                    links.resume();
                });
            }
            sums(&mut group, LONG_SUM);
        });
    });
}

#[test]
fn two_groups_of_the_same_ranks_open_their_connections_at_the_same_time() {
    let _leaks = leaks();
    let store = HashStore::default();
    std::thread::scope(|scope| {
        for rank in 0..3 {
            let store = store.clone();
            scope.spawn(move || {
                let join = |name: &str| {
                    let options = GroupOptions { name: name.into(), ..on_hosts(3, options(rank, 3)) };
                    Group::join(options, &mut store.clone()).unwrap()
                };
                let (mut one, mut other) = (join("one"), join("other"));
                std::thread::scope(|scope| {
                    scope.spawn(|| sums(&mut one, LONG_SUM));
                    sums(&mut other, 10);
                });
                // One goes on when the other has ended.
                drop(one);
                sums(&mut other, LONG_SUM);
            });
        }
    });
}
