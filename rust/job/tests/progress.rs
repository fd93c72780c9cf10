//! What the state machine of a job makes of its ranks' progress: hangs, stacks, slow ranks, how far it is.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use std::time::{Duration, Instant};

use phalanx_job::driver::state::JobState;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage, RankActivity};
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Attempt, FailureKind, Job, Policy, RankState};

use play::{Play, ended, join, missed_a_peer};

/// What node `rank` tells of its rank.
fn doing(rank: u32, idle_ms: u64) -> NodeMessage {
    NodeMessage::Activity { ranks: vec![RankActivity { rank, idle_ms, ..RankActivity::default() }] }
}

fn stacks(rank: u32, request: u32, text: &str) -> NodeMessage {
    NodeMessage::Stacks { request, ranks: vec![RankStacks { rank, text: text.into() }] }
}

#[test]
fn a_job_hangs_when_all_running_ranks_do_and_their_stacks_come_before_their_end() {
    let mut play = Play::hanging(10);
    play.tell(10, 0, doing(0, 9_000));
    play.tell(12, 1, doing(1, 11_000));
    assert_eq!(play.orders(), [], "DRIVER-20: rank 0 may go on");
    play.tell(13, 0, doing(0, 12_000));
    let orders = play.orders();
    assert!(orders.iter().all(|(_, order)| matches!(order, HubMessage::Stacks { request: 1 })), "{orders:?}");
    assert_eq!(orders.len(), 2, "DRIVER-21");
    play.tell(13, 0, stacks(0, 1, "in all_reduce"));
    assert_eq!(play.orders(), []);
    play.tell(13, 1, stacks(1, 1, "in lock"));
    assert!(matches!(play.orders()[..], [(0, HubMessage::Stop { .. }), (1, HubMessage::Stop { .. })]));
    for rank in 0..2 {
        play.ends(14, rank, RankState::Stopped);
    }
    assert_eq!((play.failure().kind, play.failure().rank), (FailureKind::Hang, Some(0)));
    assert!(play.failure().message.contains("no running rank has made progress for 10.0s"));
    assert!(play.failure().render().contains("rank 1:\n  in lock"), "{}", play.failure().render());
}

#[test]
fn a_node_that_has_no_stacks_to_tell_does_not_hold_up_the_end_of_a_hang() {
    let mut play = Play::hanging(10);
    for rank in 0..2 {
        play.tell(12, rank, doing(rank, 11_000));
    }
    play.tell(12, 0, stacks(0, 1, "in all_reduce"));
    play.orders();
    play.tick(18);
    assert!(matches!(play.orders()[..], [(0, HubMessage::Stop { .. }), ..]), "DRIVER-21");
    for rank in 0..2 {
        play.ends(19, rank, RankState::Stopped);
    }
    assert!(play.failure().stacks.contains("(its host did not answer in time)"));
}

#[test]
fn a_rank_that_ended_is_not_waited_for_and_without_a_time_out_nothing_hangs() {
    let mut play = Play::hanging(10);
    play.tell(5, 0, ended(0, RankState::Finished, 0));
    play.tell(13, 1, doing(1, 12_000));
    assert!(matches!(play.orders()[..], [(_, HubMessage::Stacks { .. }), ..]), "DRIVER-20");
    let mut play = Play::placed();
    for rank in 0..2 {
        play.tell(13, rank, doing(rank, 12_000_000));
    }
    assert_eq!(play.orders(), []);
}

#[test]
fn ranks_that_end_well_while_their_stacks_are_asked_for_did_not_hang() {
    let mut play = Play::hanging(10);
    play.tell(12, 0, ended(0, RankState::Finished, 0));
    play.tell(13, 1, doing(1, 12_000));
    assert!(matches!(play.orders()[..], [(_, HubMessage::Stacks { request: 1 }), ..]), "DRIVER-20");
    play.tell(13, 1, ended(1, RankState::Finished, 0));
    play.tell(13, 1, NodeMessage::Stacks { request: 1, ranks: vec![] });
    play.tick(20);
    for partition in 0..2 {
        play.done(20, partition);
    }
    assert!(play.is_finished(), "DRIVER-20");
}

#[test]
fn a_rank_that_has_left_its_result_hides_no_hang_and_is_none() {
    let told = |rank, idle_ms| RankActivity { rank, idle_ms, returned: true, ..RankActivity::default() };
    let returned = |rank, idle_ms| NodeMessage::Activity { ranks: vec![told(rank, idle_ms)] };
    let mut play = Play::hanging(10);
    play.tell(12, 0, returned(0, 11_000));
    play.tell(12, 1, returned(1, 11_000));
    assert_eq!(play.orders(), [], "DRIVER-20: both end in their own time");
    for busy_for in [0, 60_000] {
        let mut play = Play::hanging(10);
        play.tell(12, 0, returned(0, busy_for));
        play.tell(12, 1, doing(1, 11_000));
        assert!(matches!(play.orders()[..], [(_, HubMessage::Stacks { .. }), ..]), "DRIVER-20");
        play.tick(18);
        for rank in 0..2 {
            play.ends(19, rank, RankState::Stopped);
        }
        assert_eq!((play.failure().kind, play.failure().rank), (FailureKind::Hang, Some(1)));
    }
}

#[test]
fn a_rank_that_has_left_its_result_and_is_stopped_hangs_as_nobody_else_ends_it() {
    let mut play = Play::hanging(10);
    play.ends(5, 0, RankState::Finished);
    play.orders();
    let told = RankActivity { rank: 1, idle_ms: 11_000, returned: true, ..RankActivity::default() };
    let stopped = RankActivity { stopped: true, ..told.clone() };
    play.tell(12, 1, NodeMessage::Activity { ranks: vec![told] });
    assert_eq!(play.orders(), [], "DRIVER-20");
    play.tell(12, 1, NodeMessage::Activity { ranks: vec![stopped] });
    assert!(matches!(play.orders()[..], [(1, HubMessage::Stacks { .. })]), "DRIVER-20");
}

#[test]
fn a_stopped_process_is_the_one_that_hangs() {
    for victim in [ended(0, RankState::Stopped, 0), missed_a_peer(0)] {
        let mut play = Play::hanging(10);
        play.tell(12, 0, doing(0, 12_000));
        let stopped = RankActivity { rank: 1, idle_ms: 10_500, stopped: true, ..RankActivity::default() };
        play.tell(12, 1, NodeMessage::Activity { ranks: vec![stopped] });
        play.tick(18);
        play.ends(19, 1, RankState::Stopped);
        play.tell(19, 0, victim);
        play.done(19, 0);
        let failure = play.failure();
        assert_eq!((failure.kind, failure.rank), (FailureKind::Hang, Some(1)), "{}", failure.message);
        assert!(failure.message.ends_with("; its process is stopped"), "{}", failure.message);
    }
}

#[test]
fn the_caller_can_ask_for_stacks_and_the_run_goes_on() {
    let mut play = Play::placed();
    let now = play.at(3);
    play.state.ask_for_stacks(now, &mut play.out);
    assert_eq!(play.orders().len(), 2);
    for rank in 0..2 {
        play.tell(3, rank, stacks(rank, 1, "in train"));
    }
    assert_eq!(play.state.take_stacks()[0].len(), 2);
    assert_eq!(play.orders(), []);
    assert_eq!(play.state.outcome(), None);
}

fn tried_again_after_a_hang(policy: &mut Policy) {
    policy.max_restarts = 1;
    policy.hang_timeout = Duration::from_secs(10);
}

#[test]
fn a_caller_that_asks_is_told_a_hangs_stacks_and_none_in_a_restart() {
    let mut play = Play::under(tried_again_after_a_hang);
    for rank in 0..2 {
        play.tell(12, rank, doing(rank, 11_000));
    }
    let now = play.at(12);
    play.state.ask_for_stacks(now, &mut play.out);
    for rank in 0..2 {
        play.tell(13, rank, stacks(rank, 1, "in train"));
    }
    assert_eq!(play.state.take_stacks()[0].len(), 2, "those that were asked for already");
    for rank in 0..2 {
        play.tell(14, rank, ended(rank, RankState::Stopped, 0));
    }
    play.done(14, 0);
    let now = play.at(14);
    play.state.ask_for_stacks(now, &mut play.out);
    assert_eq!(play.state.take_stacks(), Vec::<Vec<RankStacks>>::new(), "node 1 still has to answer");
    play.done(14, 1);
    assert_eq!(play.state.take_stacks(), [Vec::new()], "no rank runs now");
}

#[test]
fn a_slow_rank_is_named_once_after_a_while() {
    let mut play = Play::placed();
    let step = |rank, step, step_us| {
        let told = RankActivity { rank, step: Some(step), step_us: Some(step_us), ..RankActivity::default() };
        NodeMessage::Activity { ranks: vec![told] }
    };
    let mut notices = Vec::new();
    for i in 0..20 {
        let seconds = 2 + 4 * i;
        play.tell(seconds, 0, step(0, i, 100_000));
        // One break of rank 1's slowness, early.
        play.tell(seconds, 1, step(1, i, if i == 2 { 150_000 } else { 250_000 }));
        let new = play.state.take_notices();
        assert!(new.is_empty() || seconds >= 14 + 30, "DRIVER-33: {new:?} at {seconds}");
        notices.extend(new);
    }
    let expected = "[phalanx] rank 1 (host-1) is slow: 0.25 s a step, the median of the ranks is 0.10 s";
    assert_eq!(notices, [expected], "DRIVER-33");
    assert_eq!(play.state.status(), "training, step 19");
    assert_eq!(play.state.take_progress().len(), 40);
}

#[test]
fn the_status_says_how_far_the_job_is() {
    let job = Job::new("state", "t", 2, 2).unwrap();
    let began = Instant::now();
    let mut play =
        Play { state: JobState::new(job, began), out: Outbox::default(), began, attempt: Attempt::first() };
    assert_eq!(play.state.status(), "waiting for 2 of 2 tasks");
    play.tell(0, 1, NodeMessage::Join(join(1)));
    assert_eq!(play.state.status(), "waiting for 1 of 2 tasks");
    play.tell(0, 0, NodeMessage::Join(join(0)));
    assert_eq!(play.state.status(), "starting ranks");
    for rank in 0..2 {
        play.tell(1, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
    }
    assert_eq!(play.state.status(), "training");
    play.finishes(3);
    assert_eq!(play.state.status(), "over");
}

#[test]
fn a_hang_is_tried_again_in_place_and_looked_for_again() {
    let mut play = Play::under(tried_again_after_a_hang);
    for attempt in 0..2 {
        play.attempt = Attempt::new(attempt);
        if attempt == 1 {
            assert!(matches!(
                play.orders()[..],
                [(0, HubMessage::Again { .. }), (1, HubMessage::Again { .. })]
            ));
            play.starts(30);
        }
        for rank in 0..2 {
            play.tell(50, rank, doing(rank, 12_000));
        }
        for rank in 0..2 {
            play.tell(50, rank, stacks(rank, attempt + 1, "in train"));
        }
        for rank in 0..2 {
            play.tell(51, rank, ended(rank, RankState::Stopped, 0));
        }
        play.orders();
        for rank in 0..2 {
            play.done(51, rank);
        }
    }
    assert_eq!((play.failure().kind, play.failure().restarts), (FailureKind::Hang, 1));
}
