//! How long a cancelled run takes, and what its caller is told meanwhile: the state machine by itself.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use phalanx_types::{Attempt, FailureKind, RankState};

use play::{Play, ended};

/// The Spark job of two ranks was cancelled at 5 s. Their grace is 5 s.
fn cancelled_through_spark() -> Play {
    let mut play = Play::placed();
    let now = play.at(5);
    play.state.cancel(now, "its job group was cancelled", &mut play.out);
    play.state.stage_ended(now, Attempt::first(), None, &mut play.out);
    play.tick(8);
    assert_eq!(play.state.outcome(), None, "DRIVER-18: the ranks have their grace");
    play
}

#[test]
fn a_cancel_through_spark_is_over_when_the_ranks_are_gone() {
    let mut play = cancelled_through_spark();
    for rank in 0..2 {
        play.ends(9, rank, RankState::Stopped);
    }
    assert_eq!(play.failure().kind, FailureKind::Cancelled, "DRIVER-18");
}

#[test]
fn a_rank_that_used_its_grace_has_its_last_output_told() {
    let mut play = cancelled_through_spark();
    play.ends(8, 0, RankState::Stopped);
    play.tell(9, 1, ended(1, RankState::Stopped, 0));
    assert_eq!(
        play.state.outcome(),
        None,
        "DRIVER-18: its node is there, and has not said that it told everything"
    );
    play.done(9, 1);
    assert_eq!(play.failure().kind, FailureKind::Cancelled, "DRIVER-18");
}

#[test]
fn workers_that_spark_kills_leave_their_ranks_the_grace() {
    let mut play = cancelled_through_spark();
    play.ends(8, 0, RankState::Stopped);
    // As Spark does with a Python worker 2 s after its task was cancelled.
    play.breaks(8, 1);
    play.tick(11);
    assert_eq!(play.state.outcome(), None, "DRIVER-18: its guard gives the rank its grace");
    play.tick(12);
    assert_eq!(play.failure().kind, FailureKind::Cancelled, "DRIVER-18");
    assert_eq!(play.failure().ranks[1].state, RankState::Stopped);
}

#[test]
fn the_caller_is_told_once_which_ranks_make_use_of_their_grace() {
    let mut play = Play::placed();
    let now = play.at(5);
    play.state.cancel(now, "enough", &mut play.out);
    play.tell(6, 0, ended(0, RankState::Stopped, 0));
    play.tick(6);
    assert_eq!(play.state.take_notices(), Vec::<String>::new());
    play.tick(7);
    play.tick(8);
    let told = "[phalanx] rank 1 still runs after being told to end; Phalanx kills it in 5 s";
    assert_eq!(play.state.take_notices(), [told]);
}
