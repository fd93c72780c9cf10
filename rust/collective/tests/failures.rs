//! Failures that ranks as threads can have: GROUP-37 to GROUP-40, GROUP-69, GROUP-70, GROUP-7.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::time::{Duration, Instant};

use common::{LONG, options, world_with};
use phalanx_collective::{DType, Group, GroupOptions, HashStore, ReduceOp};
use phalanx_testkit::leaks;
use phalanx_types::{Error, ErrorKind, Result};
use rustix::time::{ClockId, clock_gettime};

/// On one host; on a host each, plain and encrypted; and mixed.
fn worlds(ranks: usize, timeout: Duration, run: impl Fn(&mut Group) + Sync) {
    type Layout = fn(usize) -> Option<u32>;
    let layouts: [(bool, Layout); 4] = [
        (false, |_| None),
        (false, |rank| Some(rank as u32)),
        (true, |rank| Some(rank as u32)),
        (false, |rank| Some(u32::from(rank > 0))),
    ];
    for (encryption, layout) in layouts {
        let change = |options: GroupOptions| GroupOptions {
            pretended_host: layout(options.rank),
            encryption,
            timeout,
            ..options
        };
        world_with(ranks, change, &run);
    }
}

#[track_caller]
fn says(error: &Error, kind: ErrorKind, parts: &[&str]) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}\nlacks one of {parts:?}");
}

/// GROUP-38: what comes after a failure fails at once, with the same story.
#[track_caller]
fn is_broken(group: &mut Group, kind: ErrorKind) {
    let start = Instant::now();
    let error = group.barrier().unwrap_err();
    says(&error, kind, &["the group is broken"]);
    assert!(start.elapsed() < Duration::from_secs(1));
    assert!(group.failure().is_some());
}

#[test]
fn ranks_that_call_different_things_are_told_what_each_called() {
    // GROUP-40, GROUP-51
    let _leaks = leaks();
    type Call = fn(&mut Group) -> Result<()>;
    let pairs: [(Call, Call, [&str; 2]); 5] = [
        (
            |group| group.all_reduce_of(&mut [0f32; 16], ReduceOp::Sum),
            |group| group.all_reduce_of(&mut [0f32; 17], ReduceOp::Sum),
            ["all_reduce(sum, float32, 64 bytes)", "all_reduce(sum, float32, 68 bytes)"],
        ),
        (
            |group| group.all_reduce_of(&mut [0f32; 300_000], ReduceOp::Sum),
            |group| group.all_reduce_of(&mut [0i32; 300_000], ReduceOp::Sum),
            ["float32", "int32"],
        ),
        (
            |group| group.all_reduce_of(&mut [0f32; 4], ReduceOp::Sum),
            |group| group.all_reduce_of(&mut [0f32; 4], ReduceOp::Max),
            ["all_reduce(sum", "all_reduce(max"],
        ),
        (
            |group| group.barrier(),
            |group| group.broadcast_of(&mut [0u8; 3], 1),
            ["barrier()", "broadcast(uint8, 3 bytes, root 1)"],
        ),
        (
            |group| group.broadcast_of(&mut [0u8; 3], 0),
            |group| group.broadcast_of(&mut [0u8; 3], 1),
            ["root 0", "root 1"],
        ),
    ];
    for (one, other, parts) in pairs {
        worlds(3, LONG, |group| {
            // A rank may hear of it before it is done with the first call, or, if it only sends, in the last.
            let result = group.barrier();
            let result = result.and_then(|()| if group.rank() == 1 { other(group) } else { one(group) });
            let result = result.and_then(|()| group.barrier());
            let hosts = &group.topology().hosts;
            let error = result.expect_err(&format!("{parts:?} among {hosts:?}"));
            says(&error, ErrorKind::Invalid, &["rank 1 called", " called "]);
            assert!(parts.iter().any(|part| error.to_string().contains(part)), "{error}");
            is_broken(group, ErrorKind::Invalid);
        });
    }
}

#[test]
fn messages_of_different_lengths_in_an_all_to_all_are_named() {
    // GROUP-40, GROUP-51
    let _leaks = leaks();
    worlds(2, LONG, |group| {
        let counts = if group.rank() == 0 { [1, 5] } else { [4, 1] };
        let (input, mut output) = (vec![0; counts.iter().sum()], vec![0; counts.iter().sum()]);
        let error = group.all_to_all_v(&input, &counts, &mut output, &counts, DType::U8).unwrap_err();
        says(&error, ErrorKind::Invalid, &["bytes to rank", "which expects"]);
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    // GROUP-37, GROUP-83
    let _leaks = leaks();
    worlds(3, LONG, |group| {
        group.barrier().unwrap();
        if group.rank() == 2 {
            // It comes when the others have given up.
            let error = loop {
                if let Some(error) = group.failure() {
                    break error;
                }
                std::thread::sleep(Duration::from_millis(5));
            };
            says(&error, ErrorKind::Timeout, &["still waiting for rank"]);
            return;
        }
        group.set_timeout(Duration::from_millis(300));
        let start = Instant::now();
        let error = group.all_reduce_of(&mut [0f32; 8], ReduceOp::Sum).unwrap_err();
        let took = start.elapsed();
        // Between hosts, a rank may be waited for that itself waits for the one that doesn't come.
        let is_one_host = group.topology().hosts.len() == 1;
        says(&error, ErrorKind::Timeout, &["all_reduce(sum, float32, 32 bytes)", "still waiting for rank"]);
        assert!(!is_one_host || error.to_string().contains("waiting for rank 2"), "{error}");
        assert!(took >= Duration::from_millis(250) && took < Duration::from_secs(10), "{took:?}");
        is_broken(group, ErrorKind::Timeout);
    });
}

#[test]
fn receiving_what_nobody_sends_ends_at_the_deadline() {
    // GROUP-37
    let _leaks = leaks();
    for from in [Some(1), None] {
        worlds(2, LONG, |group| {
            if group.rank() == 0 {
                group.set_timeout(Duration::from_millis(200));
                let error = group.recv(&mut [0; 4], from, 7).unwrap_err();
                says(&error, ErrorKind::Timeout, &["recv", "rank"]);
            } else {
                let error = group.barrier().unwrap_err();
                assert!([ErrorKind::Timeout, ErrorKind::PeerLost].contains(&error.kind()), "{error}");
            }
        });
    }
}

#[test]
fn an_abort_from_another_thread_ends_what_runs_on_all_ranks() {
    // GROUP-83
    let _leaks = leaks();
    worlds(3, LONG, |group| {
        group.barrier().unwrap();
        let aborter = group.aborter();
        let thread = (group.rank() == 1).then(|| {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                aborter.abort("the test says so");
            })
        });
        let start = Instant::now();
        // Rank 2 waits for a message that never comes, the others for rank 2.
        let error = match group.rank() {
            2 => group.recv(&mut [0], Some(0), 1).map(drop).unwrap_err(),
            _ => group.all_reduce_of(&mut [1.0f64; 100_000], ReduceOp::Sum).unwrap_err(),
        };
        says(&error, ErrorKind::Cancelled, &["rank 1 aborted: the test says so"]);
        assert!(start.elapsed() < Duration::from_secs(5));
        is_broken(group, ErrorKind::Cancelled);
        if let Some(thread) = thread {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_rank_that_left_fails_only_those_that_wait_for_it() {
    // GROUP-70, GROUP-83
    let _leaks = leaks();
    worlds(3, LONG, |group| {
        group.barrier().unwrap();
        match group.rank() {
            0 => {
                let mut buffer = [0; 2];
                group.recv(&mut buffer, Some(1), 0).unwrap();
                group.send(&buffer, 1, 0).unwrap();
                let error = group.recv(&mut buffer, Some(2), 0).unwrap_err();
                says(&error, ErrorKind::PeerLost, &["rank 2 has left the group"]);
                // GROUP-66: that broke nothing.
                group.send(&buffer, 1, 0).unwrap();
                group.recv(&mut buffer, Some(1), 0).unwrap();
                let error = group.barrier().unwrap_err();
                says(&error, ErrorKind::PeerLost, &["rank 2 has left the group"]);
            }
            1 => {
                group.send(&[1; 2], 0, 0).unwrap();
                group.recv(&mut [0; 2], Some(0), 0).unwrap();
                group.recv(&mut [0; 2], Some(0), 0).unwrap();
                group.send(&[2; 2], 0, 0).unwrap();
                let error = group.barrier().unwrap_err();
                says(&error, ErrorKind::PeerLost, &["rank 2 has left the group"]);
            }
            _ => {}
        }
    });
}

#[test]
fn a_rank_that_waits_for_long_leaves_the_processor_to_others() {
    // GROUP-82
    let _leaks = leaks();
    let pause = Duration::from_millis(500);
    worlds(2, LONG, |group| {
        group.barrier().unwrap();
        if group.rank() == 1 {
            std::thread::sleep(pause);
        }
        let (start, used) = (Instant::now(), processor_time());
        group.barrier().unwrap();
        if group.rank() == 0 {
            let (took, used) = (start.elapsed(), processor_time() - used);
            assert!(took > pause / 2 && used < took / 4, "{used:?} of {took:?}");
        }
    });
}

/// Of this thread.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_rank_that_has_left_is_no_failure_of_those_that_go_on_without_it() {
    // GROUP-70
    let _leaks = leaks();
    worlds(3, LONG, |group| {
        group.barrier().unwrap();
        let (mut one, pause) = ([0; 1], Duration::from_millis(450));
        match group.rank() {
            0 => assert_eq!(group.recv(&mut one, Some(1), 0).unwrap(), 1),
            1 => {
                std::thread::sleep(pause);
                group.send(&one, 0, 0).unwrap();
            }
            _ => std::thread::sleep(pause / 2),
        }
        assert!(group.failure().is_none(), "{:?}", group.failure());
    });
}

#[test]
fn a_rank_that_panics_fails_the_others() {
    // GROUP-69
    let _leaks = leaks();
    let store = HashStore::default();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let mut store = store.clone();
            scope.spawn(move || {
                let mut group = Group::join(options(rank, 2), &mut store).unwrap();
                if rank == 1 {
                    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        let _group = group;
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }));
                    return;
                }
                let error = group.barrier().unwrap_err();
                says(&error, ErrorKind::PeerLost, &["rank 1 panicked"]);
            });
        }
    });
}

#[test]
fn arguments_that_can_not_work_leave_the_group_usable() {
    // GROUP-39
    let _leaks = leaks();
    worlds(2, LONG, |group| {
        let kinds = [
            group.all_reduce(&mut [0; 7], DType::F32, ReduceOp::Sum),
            group.all_reduce(&mut [0; 8], DType::F32, ReduceOp::BitOr),
            group.broadcast(&mut [0; 8], DType::F32, 2),
            group.all_gather_v(&[0; 4], &mut [0; 8], &[1], DType::F32),
            group.all_gather_v(&[0; 4], &mut [0; 8], &[usize::MAX, 2], DType::F32),
            group.reduce_scatter(&[0; 8], &mut [0; 8], DType::F32, ReduceOp::Sum),
            group.all_to_all(&[0; 12], &mut [0; 12], DType::F64),
            group.gather(&[0; 4], &mut [0; 4], DType::F32, 0),
            group.send(&[0], 9, 0),
        ];
        for result in kinds {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Invalid);
        }
        let mut sum = [1i64];
        group.all_reduce_of(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(sum, [2]);
    });
}

#[test]
fn options_that_can_not_work_are_refused() {
    let _leaks = leaks();
    let refused = |options| Group::join(options, &mut HashStore::default()).err().unwrap().kind();
    assert_eq!(refused(options(2, 2)), ErrorKind::Invalid);
    assert_eq!(refused(GroupOptions { connections: 0, ..options(0, 1) }), ErrorKind::Invalid);
}

#[test]
fn a_rank_that_does_not_join_is_named_and_nothing_is_left() {
    // GROUP-7
    let _leaks = leaks();
    let options = GroupOptions { timeout: Duration::from_millis(100), ..options(0, 2) };
    let error = Group::join(options, &mut HashStore::default()).err().unwrap();
    says(&error, ErrorKind::Timeout, &["rank 1 has not joined \"world\""]);
}
