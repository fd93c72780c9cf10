//! Nodes that are done and wait for what comes next, and whose host vanishes: the state machine by itself.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, FailureKind, RankState};

use play::{Play, ended, join};

/// Rank 0 ends well after 5 seconds, and its node is held; nothing more is heard of it. Node 1 speaks until `seconds`.
fn held(max_restarts: u32, seconds: u64) -> Play {
    let mut play = Play::with_restarts(max_restarts);
    play.ends(5, 0, RankState::Finished);
    for at in (10..=seconds).step_by(5) {
        play.tell(at, 1, NodeMessage::Ping);
        play.tick(at);
    }
    play.orders();
    play
}

/// Rank 1 is killed, and its node is done.
fn killed(play: &mut Play, seconds: u64) {
    play.tell(seconds, 1, ended(1, RankState::Signaled(9), 0));
    play.orders();
    play.done(seconds, 1);
}

fn is_again(order: &(u32, HubMessage)) -> bool {
    matches!(order.1, HubMessage::Again { .. })
}

#[test]
fn a_held_node_whose_host_vanished_is_lost_and_the_stage_is_submitted_again() {
    let mut play = held(1, 35);
    assert_eq!(play.state.outcome(), None, "DRIVER-26: the others don't miss it");
    killed(&mut play, 40);
    assert_eq!(play.orders(), [(1, HubMessage::Released)], "DRIVER-27: none for the node that is lost");
    let [restart] = &play.state.take_restarts()[..] else { panic!() };
    assert!(!restart.in_place, "DRIVER-31, DRIVER-26");
    assert!(
        restart.line.ends_with("was ended by SIGKILL; the Spark stage is submitted again"),
        "{}",
        restart.line
    );
}

#[test]
fn a_node_that_is_lost_after_its_ranks_ended_well_does_not_spoil_the_run() {
    let mut play = held(1, 35);
    play.ends(40, 1, RankState::Finished);
    assert!(play.is_finished(), "DRIVER-23");
}

#[test]
fn a_held_node_that_does_not_come_back_is_lost_and_what_it_says_later_lets_it_go() {
    let mut play = held(1, 10);
    let now = play.at(11);
    play.state.disconnected(now, 0);
    play.tick(13);
    play.tell(14, 0, NodeMessage::Ping);
    play.done(14, 0);
    assert_eq!(play.orders(), [(0, HubMessage::Pong), (0, HubMessage::Released)], "DRIVER-27");
    killed(&mut play, 15);
    assert_eq!(play.orders(), [(1, HubMessage::Released)]);
    assert!(!play.state.take_restarts()[0].in_place, "DRIVER-31");
}

#[test]
fn a_task_that_should_have_said_something_is_waited_for_before_a_restart_in_place() {
    for comes_back in [false, true] {
        let mut play = held(1, 30);
        killed(&mut play, 33);
        assert_eq!((play.orders(), play.state.take_restarts()), (vec![], vec![]), "DRIVER-31");
        if comes_back {
            play.tell(34, 0, NodeMessage::Ping);
        }
        play.tick(35);
        let [restart] = &play.state.take_restarts()[..] else { panic!() };
        assert_eq!(restart.in_place, comes_back, "DRIVER-31");
        assert_eq!(
            play.orders().iter().filter(|order| is_again(order)).count(),
            if comes_back { 2 } else { 0 }
        );
    }
}

#[test]
fn a_host_that_vanished_as_its_node_was_called_is_a_lost_node_and_not_a_task_that_did_not_join() {
    for max_restarts in [1, 2] {
        let mut play = held(max_restarts, 10);
        killed(&mut play, 10);
        assert_eq!(play.orders().iter().filter(|order| is_again(order)).count(), 2, "it may be there");
        play.state.take_restarts();
        play.attempt = Attempt::new(1);
        play.tell(11, 1, NodeMessage::Join(join(1)));
        play.tick(34);
        assert_eq!(play.state.outcome(), None);
        play.tick(35);
        assert!(matches!(play.orders()[..], [.., (1, HubMessage::Stop { .. })]), "DRIVER-26");
        play.done(36, 1);
        if max_restarts == 1 {
            assert_eq!(play.failure().kind, FailureKind::LostNode, "DRIVER-26");
            assert!(
                play.failure().message.starts_with("the task of partition 0 (host-0) is lost"),
                "{}",
                play.failure().message
            );
        } else {
            assert!(!play.state.take_restarts()[0].in_place, "DRIVER-31");
        }
    }
}

#[test]
fn a_node_of_a_stage_that_is_over_is_told_to_go() {
    let mut play = held(1, 35);
    killed(&mut play, 40);
    play.orders();
    play.tell(41, 0, NodeMessage::Ping);
    play.done(41, 0);
    let orders = play.orders();
    assert!(
        matches!(
            orders[..],
            [(0, HubMessage::Pong), (0, HubMessage::Stop { .. }), (0, HubMessage::Released)]
        ),
        "DRIVER-32: {orders:?}"
    );
}
