//! How long the driver waits, by the table "How long it takes" of docs/failures.md. Time is virtual: it passes from one
//! moment for which the state machine asks to the next, so each bound is asserted as it is promised.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use std::time::Duration;

use phalanx_types::message::{HubMessage, NodeMessage, RankActivity};
use phalanx_types::{Attempt, FailureKind, Policy, RankState};

use play::{GRACE, Play, ended};

const NODE_TIMEOUT: Duration = Duration::from_secs(30);
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
/// When what is to be told happens, after the job's beginning.
const HAPPENS: u64 = 7;

/// Lets time pass until the run is over or wants another stage. Node 0 is heard every 5 s, as long as it is there, and
/// ends its rank when it is told to if it `obeys`. How long that took from [`HAPPENS`] on.
fn time_to_tell(play: &mut Play, is_there: bool, obeys: bool) -> Duration {
    let mut now = play.at(HAPPENS);
    let mut ping_at = now;
    loop {
        if is_there && now >= ping_at {
            play.state.message(now, 0, play.attempt, NodeMessage::Ping, &mut play.out);
            ping_at = now + Duration::from_secs(5);
        }
        let next = play.state.tick(now, &mut play.out);
        if obeys && play.orders().iter().any(|(p, order)| *p == 0 && matches!(order, HubMessage::Stop { .. }))
        {
            let done = NodeMessage::Done { problem: None, interrupted: None, output: vec![] };
            for message in [ended(0, RankState::Stopped, 0), done] {
                play.state.message(now, 0, play.attempt, message, &mut play.out);
            }
        }
        if play.state.outcome().is_some() || !play.state.take_restarts().is_empty() {
            return now - play.at(HAPPENS);
        }
        now = next.expect("a run that is not over waits for something");
        if is_there {
            now = now.min(ping_at);
        }
    }
}

fn restarts(policy: &mut Policy) {
    policy.max_restarts = 1;
}

#[test]
fn an_executor_that_is_killed_is_told_of_after_two_seconds() {
    let mut play = Play::placed();
    play.breaks(HAPPENS, 1);
    assert_eq!(time_to_tell(&mut play, true, true), Duration::from_secs(2), "DRIVER-26");
    assert_eq!((play.failure().kind, play.failure().rank), (FailureKind::LostNode, Some(1)));
}

#[test]
fn a_host_that_vanishes_is_told_of_after_the_node_timeout() {
    let mut play = Play::placed();
    play.tell(HAPPENS, 1, NodeMessage::Ping);
    assert_eq!(time_to_tell(&mut play, true, true), NODE_TIMEOUT, "DRIVER-26");
    assert_eq!((play.failure().kind, play.failure().rank), (FailureKind::LostNode, Some(1)));
}

#[test]
fn a_task_that_is_gone_before_all_had_joined_is_told_of_after_the_node_timeout_or_when_joining_is_over() {
    for (change, bound) in
        [(restarts as fn(&mut Policy), NODE_TIMEOUT), (|_| {}, JOIN_TIMEOUT - Duration::from_secs(HAPPENS))]
    {
        let mut play = Play::joining(change);
        play.joins(HAPPENS, 0);
        play.breaks(HAPPENS, 0);
        assert_eq!(time_to_tell(&mut play, false, false), bound, "DRIVER-26");
    }
}

#[test]
fn tasks_that_do_not_join_are_told_of_after_the_join_timeout_from_the_start() {
    let mut play = Play::joining(|_| {});
    play.joins(HAPPENS, 0);
    let bound = JOIN_TIMEOUT - Duration::from_secs(HAPPENS);
    assert_eq!(time_to_tell(&mut play, true, true), bound);
    assert_eq!(play.failure().kind, FailureKind::Start);
}

/// Looks once a second, between these seconds, at a stage that waits for slots.
fn waits(play: &mut Play, from: u64, until: u64) {
    for second in from..until {
        play.sees(second, Some(0), 1);
        play.tick(second);
        assert_eq!(play.state.outcome(), None, "DRIVER-42");
        assert_eq!(play.state.status(), "waiting for 2 slots; 1 is free");
    }
}

#[test]
fn tasks_that_wait_for_slots_have_the_join_timeout_once_they_run() {
    let mut play = Play::joining(|_| {});
    waits(&mut play, 0, 1000);
    let seen = Duration::from_secs(1000 - HAPPENS);
    play.sees(1000, Some(2), 0);
    assert_eq!(time_to_tell(&mut play, false, false), seen + JOIN_TIMEOUT, "DRIVER-42");
    let told = "the tasks of partitions 0, 1 did not join within 120s; 0 of 2 tasks have joined.";
    assert!(play.failure().message.starts_with(told), "{}", play.failure().message);
}

#[test]
fn a_join_begins_the_time_of_the_others_and_later_looks_do_not_stop_it() {
    let mut play = Play::joining(|_| {});
    waits(&mut play, 0, 1000);
    play.joins(1000, 0);
    play.sees(1001, Some(0), 1);
    let bound = Duration::from_secs(1000 - HAPPENS) + JOIN_TIMEOUT;
    assert_eq!(time_to_tell(&mut play, true, true), bound, "DRIVER-42");
}

#[test]
fn an_observer_that_is_gone_is_no_reason_to_wait_for_ever() {
    let mut play = Play::joining(|_| {});
    waits(&mut play, 0, 1000);
    let bound = Duration::from_secs(999 - HAPPENS + 30) + JOIN_TIMEOUT;
    assert_eq!(time_to_tell(&mut play, false, false), bound, "DRIVER-43");
}

#[test]
fn a_queue_ends_with_its_timeout_where_that_is_set() {
    let mut play = Play::joining(|policy| policy.queue_timeout = Duration::from_secs(300));
    // An earlier stage of the DataFrame, which waits for nobody.
    (0..100).for_each(|second| play.sees(second, None, 2));
    waits(&mut play, 100, 390);
    assert_eq!(time_to_tell(&mut play, false, false), Duration::from_secs(400 - HAPPENS), "DRIVER-44");
    assert_eq!(play.failure().kind, FailureKind::Start);
    let told = "Spark did not have 2 free task slots at once within 300s (spark.phalanx.queueTimeout); \
                1 was free at the end.";
    assert!(play.failure().message.starts_with(told), "{}", play.failure().message);
}

#[test]
fn each_restart_waits_for_slots_anew() {
    let mut play =
        Play::under(|policy| (policy.max_restarts, policy.queue_timeout) = (1, Duration::from_secs(60)));
    play.breaks(HAPPENS, 0);
    play.breaks(HAPPENS, 1);
    play.tick(HAPPENS + 2);
    assert_eq!(play.state.take_restarts().len(), 1);
    // What is still seen of the stage before says nothing of this one.
    play.sees(HAPPENS + 3, Some(2), 0);
    play.attempt = Attempt::new(1);
    waits(&mut play, HAPPENS + 4, HAPPENS + 60);
    assert_eq!(time_to_tell(&mut play, false, false), Duration::from_secs(64), "DRIVER-44");
}

#[test]
fn nodes_that_do_not_report_their_end_are_waited_for_during_the_grace_and_15_seconds() {
    let mut play = Play::placed();
    play.ends(HAPPENS, 1, RankState::Exited(3));
    assert_eq!(time_to_tell(&mut play, true, false), GRACE + Duration::from_secs(15), "DRIVER-25");
    assert_eq!((play.failure().kind, play.failure().rank), (FailureKind::ExitCode, Some(1)));
}

#[test]
fn a_stage_that_ends_without_a_word_is_told_of_after_two_seconds() {
    let mut play = Play::placed();
    let now = play.at(HAPPENS);
    play.state.stage_ended(now, Attempt::first(), None, &mut play.out);
    assert_eq!(time_to_tell(&mut play, true, false), Duration::from_secs(2), "DRIVER-25");
}

#[test]
fn a_task_that_spark_ended_waits_two_seconds_for_the_stages_word() {
    let mut play = Play::placed();
    for partition in 0..2 {
        play.tell(HAPPENS, partition, ended(partition, RankState::Stopped, 0));
        let interrupted = Some("its Spark task was killed".into());
        play.tell(HAPPENS, partition, NodeMessage::Done { problem: None, interrupted, output: vec![] });
    }
    assert_eq!(time_to_tell(&mut play, false, false), Duration::from_secs(2), "DRIVER-24");
}

#[test]
fn a_cancel_names_who_still_runs_after_two_seconds_and_waits_for_the_grace_and_two_seconds() {
    let mut play = Play::placed();
    let now = play.at(HAPPENS);
    play.state.cancel(now, "enough", &mut play.out);
    // Spark ends the tasks; their ranks make use of their grace.
    play.state.stage_ended(now, Attempt::first(), Some("cancelled".into()), &mut play.out);
    let two = Duration::from_secs(2);
    play.state.tick(now + two - Duration::from_millis(1), &mut play.out);
    assert!(play.state.take_notices().is_empty());
    play.state.tick(now + two, &mut play.out);
    assert_eq!(play.state.take_notices().len(), 1);
    assert_eq!(time_to_tell(&mut play, false, false), GRACE + two, "DRIVER-18");
    assert_eq!(play.failure().kind, FailureKind::Cancelled);
}

#[test]
fn a_hang_is_told_of_as_soon_as_the_last_rank_is_known_to_hang_or_when_stacks_were_waited_for_for_5_seconds()
{
    for (comes, bound) in [(true, Duration::ZERO), (false, Duration::from_secs(5))] {
        let mut play = Play::hanging(6);
        for rank in 0..2 {
            let activity = RankActivity { rank, idle_ms: 6000, ..RankActivity::default() };
            play.tell(HAPPENS, rank, NodeMessage::Activity { ranks: vec![activity] });
        }
        for partition in 0..2 {
            if comes {
                play.tell(HAPPENS, partition, NodeMessage::Stacks { request: 1, ranks: vec![] });
            }
        }
        // What counts is when the ranks are told to end: rank 1 has ended by itself, and node 0 obeys at once.
        play.ends(HAPPENS, 1, RankState::Stopped);
        assert_eq!(time_to_tell(&mut play, true, true), bound, "DRIVER-21");
        assert_eq!(play.failure().kind, FailureKind::Hang);
    }
}
