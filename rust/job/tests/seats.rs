//! Who has the seat of a partition, as the driver decides it, and what becomes of seats in a gang of tasks.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use phalanx_rendezvous::Seat;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, FailureKind, Gang, Policy, RankState};

use play::{Play, copy, ended, join, task};

fn of_tasks(policy: &mut Policy) {
    policy.max_restarts = 1;
    policy.gang = Gang::Tasks;
}

/// Both tasks have their places, and the node of partition 1 is lost in the second 5; rank 0 was stopped.
fn one_is_lost(change: fn(&mut Policy)) -> Play {
    let mut play = Play::under(change);
    play.breaks(5, 1);
    play.tick(8);
    play.tell(8, 0, ended(0, RankState::Stopped, 0));
    play.orders();
    play.done(8, 0);
    play
}

#[test]
fn a_copy_of_a_task_waits_while_the_node_of_the_first_lives_and_changes_nothing() {
    let mut play = Play::under(of_tasks);
    for seconds in 5..8 {
        assert_eq!(play.comes(seconds, 1, copy(1)), Seat::Spare, "DRIVER-50");
    }
    assert_eq!(play.orders(), []);
    // A connection that breaks may come back, and its task has its place.
    play.breaks(8, 1);
    assert_eq!(play.comes(8, 1, copy(1)), Seat::Spare, "DRIVER-50");
    assert_eq!(play.comes(9, 1, task(1)), Seat::Yours);
    play.tell(9, 1, NodeMessage::Ping);
    play.tick(20);
    play.finishes(20);
    assert!(play.is_finished());
    assert!(matches!(play.comes(21, 1, copy(1)), Seat::Over(_)), "the run is over");
}

#[test]
fn a_spare_has_the_seat_of_a_task_that_goes_before_it_has_its_place() {
    let mut play = Play::joining(of_tasks);
    play.joins(0, 0);
    let version = play.state.seats();
    assert_eq!(play.comes(1, 0, copy(1)), Seat::Spare, "DRIVER-50");
    play.breaks(2, 0);
    assert_ne!(play.state.seats(), version, "spares are asked about");
    assert_eq!(play.comes(2, 0, copy(1)), Seat::Inherited, "DRIVER-52");
    play.tell(2, 0, NodeMessage::Join(join(0)));
    assert_eq!(play.comes(3, 0, task(1)), Seat::Spare, "the one that went is the spare now");
    play.joins(3, 1);
    assert!(matches!(play.orders()[..], [(0, HubMessage::Place(_)), (1, HubMessage::Place(_))]));
}

#[test]
fn in_a_gang_of_tasks_the_others_stay_where_one_is_lost_and_its_replacement_has_its_seat() {
    let mut play = one_is_lost(of_tasks);
    let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-31") };
    assert!(restart.in_place, "DRIVER-31");
    assert!(restart.line.ends_with("; 1 of 2 tasks is replaced"), "{}", restart.line);
    assert!(matches!(play.orders()[..], [(0, HubMessage::Again { .. })]), "DRIVER-27");
    // Spark's next task for the seat knows of the first attempt only.
    assert_eq!(play.comes(9, 1, copy(1)), Seat::Inherited, "DRIVER-52");
    play.tell(9, 1, NodeMessage::Join(join(1)));
    assert!(
        matches!(play.orders()[..], [(1, HubMessage::Again { attempt, .. })] if attempt == Attempt::new(1))
    );
    play.attempt = Attempt::new(1);
    assert_eq!(play.comes(10, 1, copy(1)), Seat::Yours);
    assert_eq!(play.comes(10, 1, task(1)), Seat::Spare, "DRIVER-50: the first comes back too late");
    play.joins(10, 0);
    play.tell(10, 1, NodeMessage::Join(join(1)));
    assert!(matches!(play.orders()[..], [(0, HubMessage::Place(_)), (1, HubMessage::Place(_))]));
}

fn with_blocks(policy: &mut Policy) {
    of_tasks(policy);
    policy.executor_blocks = true;
}

#[test]
fn where_executors_have_blocks_all_seats_are_given_back_when_one_is_lost() {
    let mut play = one_is_lost(with_blocks);
    let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-60") };
    assert!(!restart.in_place, "DRIVER-60");
    assert!(restart.line.ends_with("; all tasks are submitted again"), "{}", restart.line);
    assert_eq!(
        play.orders(),
        [(0, HubMessage::Released)],
        "DRIVER-60: the one that lives gives its slot back"
    );
    assert!(!play.state.admits(Attempt::first()), "DRIVER-60");
    // Spark has started the task again that went; it joins an attempt that is over, and is let go.
    assert_eq!(play.comes(9, 1, copy(1)), Seat::Inherited);
    play.tell(9, 1, NodeMessage::Join(join(1)));
    assert_eq!(play.orders(), [(1, HubMessage::Released)], "DRIVER-60");
    // The gang gathers again once the blocks are written.
    play.attempt = Attempt::new(1);
    for partition in 0..2 {
        assert_eq!(play.comes(60, partition, task(2)), Seat::Inherited, "DRIVER-51");
        play.tell(60, partition, NodeMessage::Join(join(partition)));
    }
    assert!(matches!(play.orders()[..], [(0, HubMessage::Place(_)), (1, HubMessage::Place(_))]));
    play.finishes(70);
    assert!(play.is_finished());
}

#[test]
fn where_executors_have_blocks_ranks_start_again_in_place_while_all_tasks_live() {
    let mut play = Play::under(with_blocks);
    play.fails(5, RankState::Signaled(9));
    let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-31") };
    assert!(restart.in_place, "DRIVER-31, DRIVER-60");
}

#[test]
fn where_executors_have_blocks_a_task_that_spark_ends_or_starts_again_has_all_submitted_again() {
    for ends in [true, false] {
        let mut play = Play::under(with_blocks);
        if ends {
            play.tell(5, 1, ended(1, RankState::Stopped, 0));
            let interrupted = Some("its Spark task was killed: preempted".to_string());
            play.tell(5, 1, NodeMessage::Done { problem: None, interrupted, output: vec![] });
        } else {
            assert_eq!(play.comes(5, 1, task(2)), Seat::Spare, "DRIVER-51");
        }
        play.tell(6, 0, ended(0, RankState::Stopped, 0));
        play.done(6, 0);
        play.tick(9);
        let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-60") };
        assert!(!restart.in_place, "DRIVER-60");
    }
}

#[test]
fn where_executors_have_blocks_a_node_that_was_lost_is_not_told_to_have_its_task_started_again() {
    let mut play = Play::under(with_blocks);
    play.breaks(5, 1);
    play.tick(8);
    play.orders();
    play.tell(8, 1, NodeMessage::Ping);
    let orders = play.orders();
    assert!(
        !orders.iter().any(|(_, order)| matches!(order, HubMessage::GivenUp { .. })),
        "DRIVER-60: {orders:?}"
    );
}

#[test]
fn a_node_that_was_lost_and_is_there_fails_so_that_spark_starts_its_task_again() {
    for comes_back in [6, 9] {
        let mut play = Play::under(of_tasks);
        play.breaks(5, 1);
        play.tick(8);
        if comes_back == 9 {
            play.tell(8, 0, ended(0, RankState::Stopped, 0));
            play.done(8, 0);
            assert_eq!(play.state.take_restarts().len(), 1);
        }
        play.orders();
        assert_eq!(play.comes(comes_back, 1, task(1)), Seat::Yours);
        play.tell(comes_back, 1, NodeMessage::Ping);
        let orders = play.orders();
        // Before the restart it is told to fail. After it, to stop; it is told of the new attempt once it is done.
        if comes_back == 9 {
            let stop = |(p, order): &(u32, HubMessage)| *p == 1 && matches!(order, HubMessage::Stop { .. });
            assert!(orders.iter().any(stop), "{orders:?}");
            play.done(10, 1);
            assert!(matches!(play.orders()[..], [(1, HubMessage::Again { .. })]));
        } else {
            assert!(matches!(orders[..], [(1, HubMessage::GivenUp { .. })]), "{orders:?}");
            play.done(6, 1);
            assert!(matches!(play.orders()[..], [(1, HubMessage::GivenUp { .. })]));
        }
    }
}

#[test]
fn a_seat_that_is_submitted_again_waits_until_the_attempt_is_over_and_fails_it() {
    let mut play = Play::under(of_tasks);
    assert_eq!(play.comes(5, 1, task(2)), Seat::Spare, "DRIVER-51");
    assert!(play.state.is_lost(1), "DRIVER-51");
    play.tell(6, 0, ended(0, RankState::Stopped, 0));
    play.orders();
    play.done(6, 0);
    let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-31") };
    assert!(restart.in_place, "DRIVER-31");
    assert_eq!(play.comes(6, 1, task(2)), Seat::Inherited, "DRIVER-52");
    assert!(matches!(play.comes(7, 1, task(1)), Seat::Never(_)), "DRIVER-51");
    assert!(!play.state.is_seated(1, 1) && play.state.is_seated(1, 2));
}

#[test]
fn a_seat_whose_node_has_ended_well_is_submitted_again_without_harm() {
    let mut play = Play::under(of_tasks);
    play.ends(5, 1, RankState::Finished);
    assert_eq!(play.comes(6, 1, task(2)), Seat::Spare);
    play.ends(7, 0, RankState::Finished);
    assert!(play.is_finished());
    assert!(matches!(play.comes(8, 1, task(2)), Seat::Over(_)));
}

#[test]
fn a_task_that_joined_and_fell_silent_leaves_its_seat_to_the_next() {
    let mut play = Play::joining(|policy| policy.gang = Gang::Tasks);
    play.joins(0, 0);
    assert_eq!(play.comes(1, 0, copy(1)), Seat::Spare, "DRIVER-50");
    play.tick(31);
    let version = play.state.seats();
    play.tick(32);
    assert_eq!(play.state.seats(), version, "spares are asked about once");
    assert_eq!(play.comes(32, 0, copy(1)), Seat::Inherited, "DRIVER-52");
    play.joins(32, 1);
    assert_eq!(play.orders(), [], "the join of the one before counts no more");
}

#[test]
fn a_node_that_is_called_to_the_next_attempt_keeps_its_seat_while_it_connects_anew() {
    let mut play = Play::under(of_tasks);
    assert_eq!(play.comes(4, 1, copy(1)), Seat::Spare);
    play.fails(5, RankState::Signaled(9));
    play.breaks(5, 1);
    assert_eq!(play.comes(5, 1, copy(1)), Seat::Spare, "DRIVER-50");
    assert_eq!(play.comes(5, 1, task(1)), Seat::Yours);
    // Its job has failed: it doesn't come.
    assert_eq!(play.comes(6, 1, task(2)), Seat::Inherited, "DRIVER-51");
}

#[test]
fn in_a_barrier_stage_all_go_where_one_is_lost() {
    let mut play = one_is_lost(|policy| policy.max_restarts = 1);
    let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-31") };
    assert!(!restart.in_place, "DRIVER-31");
    // The stage that is submitted again has tasks of its own.
    assert_eq!(play.comes(9, 0, task(2)), Seat::Inherited, "DRIVER-51");
    assert!(matches!(play.comes(9, 0, task(1)), Seat::Never(_)), "DRIVER-51");
}

#[test]
fn a_seat_whose_replacement_does_not_come_fails_the_run_in_time() {
    let mut play = one_is_lost(of_tasks);
    play.state.take_restarts();
    play.attempt = Attempt::new(1);
    play.joins(9, 0);
    for seconds in (10..620).step_by(5) {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tick(seconds);
    }
    assert!(play.state.outcome().is_none() || play.failure().kind == FailureKind::Start);
    play.tell(620, 0, NodeMessage::Done { problem: None, interrupted: None, output: vec![] });
    play.tick(640);
    assert!(
        play.failure().message.contains("partition 1 did not join within 600s"),
        "{}",
        play.failure().message
    );
}

#[test]
fn a_task_that_spark_ends_goes_alone_and_is_let_go_at_once() {
    let mut play = Play::under(of_tasks);
    play.tell(5, 1, ended(1, RankState::Stopped, 0));
    let interrupted = Some("its Spark task was killed: preempted".to_string());
    play.tell(5, 1, NodeMessage::Done { problem: None, interrupted, output: vec![] });
    assert!(play.orders().contains(&(1, HubMessage::Released)));
    play.tell(6, 0, ended(0, RankState::Stopped, 0));
    play.done(6, 0);
    // Spark's own word on it may be on its way.
    play.tick(9);
    let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-31") };
    assert!(restart.in_place, "DRIVER-31");
    assert!(restart.line.contains("preempted"), "{}", restart.line);
}
