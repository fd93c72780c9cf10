//! Tasks that are gone before the first rank has started: the state machine by itself.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use phalanx_rendezvous::Seat;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, FailureKind, Policy};

use play::{Play, copy, join};

fn one_restart(policy: &mut Policy) {
    policy.max_restarts = 1;
}

/// Who gets a place.
fn placed(play: &mut Play) -> Vec<u32> {
    let orders = play.orders().into_iter();
    orders
        .filter(|(_, order)| matches!(order, HubMessage::Place(_)))
        .map(|(partition, _)| partition)
        .collect()
}

fn goes_on(play: &mut Play) {
    assert_eq!(play.state.outcome(), None);
    assert_eq!(play.state.take_restarts(), []);
}

/// Node 0 has joined at the beginning and is gone: without a word, or with its connection.
fn one_is_gone(change: fn(&mut Policy), breaks: bool) -> Play {
    let mut play = Play::joining(change);
    play.joins(0, 0);
    if breaks {
        play.breaks(1, 0);
    }
    play.tick(29);
    goes_on(&mut play);
    play
}

#[test]
fn a_node_that_is_gone_before_its_first_rank_started_is_a_lost_node_and_the_ranks_are_tried_again() {
    for breaks in [false, true] {
        let mut play = one_is_gone(one_restart, breaks);
        play.tick(31);
        let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-26: {breaks}") };
        assert!(!restart.in_place, "DRIVER-31");
        assert!(
            restart.line.contains("restart 1 of 1: the task of partition 0 (host-0) is lost"),
            "{}",
            restart.line
        );
        play.attempt = Attempt::new(1);
        play.orders();
        play.starts(40);
        play.finishes(50);
        assert!(play.is_finished());
    }
}

#[test]
fn another_task_in_the_stead_of_one_that_is_gone_needs_no_restart() {
    let mut play = one_is_gone(one_restart, true);
    assert_eq!(play.comes(29, 0, copy(1)), Seat::Inherited, "DRIVER-52");
    play.tell(29, 0, NodeMessage::Join(join(0)));
    play.joins(29, 1);
    assert_eq!(placed(&mut play), [0, 1]);
    play.tick(31);
    goes_on(&mut play);
}

#[test]
fn nobody_has_a_place_while_a_task_that_had_joined_is_away() {
    let mut play = one_is_gone(one_restart, true);
    play.joins(29, 1);
    assert_eq!(placed(&mut play), [0; 0]);
    assert_eq!(play.state.status(), "waiting for 1 of 2 tasks");
    play.joins(29, 0);
    assert_eq!(placed(&mut play), [0, 1]);
}

#[test]
fn without_a_restart_left_another_task_is_waited_for_and_then_the_node_is_lost() {
    let mut play = one_is_gone(|_| {}, true);
    play.tick(31);
    assert_eq!(play.state.outcome(), None, "DRIVER-26: Spark may start its task again");
    play.tick(120);
    assert_eq!(play.failure().kind, FailureKind::LostNode, "DRIVER-26");
    assert!(
        play.failure().message.starts_with("the task of partition 0 (host-0) is lost: it left before"),
        "{}",
        play.failure().message
    );
}

#[test]
fn tasks_that_never_came_are_a_failed_start() {
    let mut play = Play::joining(one_restart);
    play.joins(100, 0);
    play.tick(120);
    play.tell(120, 0, NodeMessage::Done { problem: None, interrupted: None, output: vec![] });
    assert_eq!(play.failure().kind, FailureKind::Start);
}

#[test]
fn a_task_that_says_that_spark_has_ended_it_is_expected_anew_and_not_lost() {
    let mut play = Play::joining(one_restart);
    play.joins(0, 0);
    let interrupted = Some("its Spark task was killed".into());
    play.tell(1, 0, NodeMessage::Done { problem: None, interrupted, output: vec![] });
    play.breaks(1, 0);
    assert_eq!(play.orders(), [(0, HubMessage::Released)]);
    play.tick(40);
    goes_on(&mut play);
    // What ended the other task is the stage's word.
    let now = play.at(41);
    play.state.stage_ended(now, Attempt::first(), Some("no module named phalanx".into()), &mut play.out);
    assert_eq!(play.failure().kind, FailureKind::Start);
}

#[test]
fn a_stage_that_ended_with_a_lost_executor_is_tried_again_whether_or_not_ranks_had_started() {
    for restarts in [0, 1] {
        let mut play = Play::joining(|policy| policy.max_restarts = 2);
        if restarts == 1 {
            play.starts(0);
            play.fails(5, phalanx_types::RankState::Signaled(9));
            play.attempt = Attempt::new(1);
            play.state.take_restarts();
            play.joins(6, 0);
        }
        let now = play.at(7);
        let lost = "the Spark stage failed: ExecutorLostFailure (executor 1 exited) Reason: Command exited";
        play.state.stage_ended(now, Attempt::first(), Some(lost.into()), &mut play.out);
        play.tick(9);
        assert!(!play.state.take_restarts()[0].in_place, "DRIVER-31: after {restarts} restarts");
    }
}
