//! Point to point: GROUP-61, GROUP-62 and GROUP-63, inside a host, between hosts, plain and
//! encrypted, and across both.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::time::Duration;

use common::{LONG, world, world_with};
use phalanx_collective::{DType, Group, GroupOptions, ReduceOp};
use phalanx_testkit::eventually;
use phalanx_types::ErrorKind;

fn worlds(ranks: usize, run: impl Fn(&mut Group) + Sync) {
    world(ranks, &run);
    for (hosts, encryption) in [(2, false), (ranks as u32, false), (ranks as u32, true)] {
        let on_hosts = |options: GroupOptions| GroupOptions {
            pretended_host: Some(options.rank as u32 % hosts),
            encryption,
            ..options
        };
        world_with(ranks, on_hosts, &run);
    }
}

fn letter(from: usize, to: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + from * 31 + to * 17) as u8).collect()
}

#[test]
fn everyone_can_send_to_everyone_first_and_receive_later() {
    // GROUP-62: far more than any buffer on the way holds.
    worlds(3, |group| {
        let (me, ranks) = (group.rank(), group.world_size());
        for bytes in [0, 5, 1_000_000] {
            for to in 0..ranks {
                group.send(&letter(me, to, bytes), to, 9).unwrap();
            }
            for from in (0..ranks).rev() {
                let mut buffer = vec![0; bytes];
                assert_eq!(group.recv(&mut buffer, Some(from), 9).unwrap(), from);
                assert!(buffer == letter(from, me, bytes));
            }
        }
    });
}

#[test]
fn tags_tell_messages_apart_and_keep_their_order() {
    // GROUP-61
    worlds(2, |group| {
        if group.rank() == 0 {
            for number in 0..20u8 {
                group.send(&[number], 1, u64::from(number % 2)).unwrap();
            }
        } else {
            for number in (1..20u8).step_by(2).chain((0..20).step_by(2)) {
                let mut buffer = [0];
                group.recv(&mut buffer, Some(0), u64::from(number % 2)).unwrap();
                assert_eq!(buffer, [number]);
            }
        }
    });
}

#[test]
fn a_message_from_anyone_is_received_with_its_sender() {
    worlds(4, |group| {
        if group.rank() == 0 {
            let mut senders: Vec<usize> = (1..4)
                .map(|_| {
                    let mut buffer = [0; 4];
                    let from = group.recv(&mut buffer, None, 1).unwrap();
                    assert_eq!(buffer, [from as u8; 4]);
                    from
                })
                .collect();
            senders.sort_unstable();
            assert_eq!(senders, [1, 2, 3]);
        } else {
            group.send(&[group.rank() as u8; 4], 0, 1).unwrap();
        }
    });
}

/// From rank 0 to rank 1.
fn passes_a_letter(group: &mut Group, bytes: usize) {
    if group.rank() == 0 {
        group.send(&letter(0, 1, bytes), 1, 0).unwrap();
    } else {
        let mut buffer = vec![0; bytes];
        group.recv(&mut buffer, Some(0), 0).unwrap();
        assert!(buffer == letter(0, 1, bytes));
    }
}

#[test]
fn messages_move_while_the_sender_is_in_another_operation() {
    // GROUP-63: rank 0 is in the all-reduce, which rank 1 enters only after it has all of the message.
    worlds(2, |group| {
        let mut number = [1.0f32];
        passes_a_letter(group, 3_000_000);
        group.all_reduce_of(&mut number, ReduceOp::Sum).unwrap();
        assert_eq!(number, [2.0]);
    });
}

#[test]
fn messages_come_and_go_while_both_ranks_are_in_operations() {
    // GROUP-64: rank 1 enters the barrier once rank 0, which is in it, has answered.
    worlds(2, |group| {
        let (me, other) = (group.rank(), 1 - group.rank());
        let (messenger, bytes) = (group.messenger(), 300_000);
        let received = || {
            let mut buffer = vec![0; bytes];
            eventually("a message comes", LONG, || {
                messenger.progress(Duration::from_millis(1)).unwrap();
                messenger.try_recv(&mut buffer, Some(other), 4).unwrap().is_some()
            });
            assert!(buffer == letter(other, me, bytes));
        };
        let sent = || messenger.send(&letter(me, other, bytes), other, 4).unwrap();
        if me == 0 {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    received();
                    sent();
                });
                group.barrier().unwrap();
            });
        } else {
            sent();
            received();
            group.barrier().unwrap();
        }
    });
}

#[test]
fn receiving_without_waiting_finds_what_has_arrived() {
    worlds(2, |group| {
        let mut buffer = [0; 2];
        assert_eq!(group.try_recv(&mut buffer, Some(1 - group.rank()), 3).unwrap(), None);
        group.barrier().unwrap();
        group.send(&[group.rank() as u8; 2], 1 - group.rank(), 3).unwrap();
        let mut from = None;
        eventually("it arrives", LONG, || {
            group.progress(Duration::from_millis(1)).unwrap();
            from = group.try_recv(&mut buffer, None, 3).unwrap();
            from.is_some()
        });
        assert_eq!((from, buffer), (Some(1 - group.rank()), [1 - group.rank() as u8; 2]));
        assert!(!group.has_unsent());
    });
}

#[test]
fn what_was_sent_is_delivered_by_a_rank_that_leaves() {
    worlds(2, |group| {
        passes_a_letter(group, 2_000_000);
    });
}

#[test]
fn a_message_of_another_length_is_an_error_that_says_so() {
    worlds(2, |group| {
        if group.rank() == 0 {
            group.send(&[0; 8], 1, 5).unwrap();
            let error = group.recv(&mut [0], Some(1), 0).unwrap_err();
            assert!(
                error.to_string().contains("rank 0 sent 8 bytes with tag 5, rank 1 receives 4"),
                "{error}"
            );
        } else {
            let error = group.recv(&mut [0; 4], Some(0), 5).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(
                error.to_string().contains("rank 0 sent 8 bytes with tag 5, rank 1 receives 4"),
                "{error}"
            );
            assert!(group.broadcast(&mut [0; 4], DType::U8, 0).unwrap_err().to_string().contains("broken"));
        }
    });
}
