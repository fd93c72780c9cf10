//! The state machine of a job by itself: facts and time in, orders and an outcome out.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use phalanx_job::driver::state::JobOutcome;
use phalanx_rendezvous::Seat;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, FailureKind, RankState, SparkTask};

use play::{Play, copy, ended, join, missed_a_peer};

#[test]
fn a_job_is_finished_when_every_rank_ended_well_and_every_node_is_done() {
    let mut play = Play::placed();
    play.ends(5, 0, RankState::Finished);
    play.tell(6, 1, ended(1, RankState::Finished, 0));
    assert_eq!(play.state.outcome(), None, "DRIVER-23");
    play.done(6, 1);
    let Some(JobOutcome::Finished(ranks)) = play.state.outcome() else {
        panic!("{:?}", play.state.outcome())
    };
    let states: Vec<_> = ranks.iter().map(|r| (r.rank, &r.state)).collect();
    assert_eq!(states, [(0, &RankState::Finished), (1, &RankState::Finished)]);
}

#[test]
fn a_cause_that_is_reported_later_than_its_victim_is_still_the_cause() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Exited(1), 100));
    let stopped = play.orders().iter().filter(|(_, order)| matches!(order, HubMessage::Stop { .. })).count();
    assert_eq!(stopped, 2, "DRIVER-24");
    assert_eq!(play.state.outcome(), None, "DRIVER-24: not before the others have reported");
    play.tell(6, 1, ended(1, RankState::Signaled(9), 2000));
    play.done(6, 0);
    play.done(6, 1);
    assert_eq!((play.failure().rank, play.failure().signal), (Some(1), Some(9)));
}

#[test]
fn a_node_that_went_before_a_rank_missed_it_is_the_cause_however_late_that_is_known() {
    for (went, came) in [(5, true), (7, false)] {
        let mut play = Play::placed();
        if came {
            play.breaks(went, 1);
        }
        play.tell(6, 0, missed_a_peer(0));
        play.done(6, 0);
        if !came {
            play.breaks(went, 1);
        }
        play.tick(10);
        let named = (play.failure().kind, play.failure().rank);
        let expected =
            if came { (FailureKind::LostNode, Some(1)) } else { (FailureKind::Exception, Some(0)) };
        assert_eq!(named, expected, "TYPES-20: one that went as it was told to is no cause");
    }
}

#[test]
fn an_executor_that_spark_has_lost_is_the_cause_where_ranks_only_missed_a_peer() {
    for (is_echo, kind) in [(true, FailureKind::LostNode), (false, FailureKind::ExitCode)] {
        let mut play = Play::placed();
        play.tell(6, 0, if is_echo { missed_a_peer(0) } else { ended(0, RankState::Exited(3), 0) });
        play.done(6, 0);
        let now = play.at(6);
        let said = "ExecutorLostFailure (executor 1 exited): SIGKILL".to_string();
        play.state.stage_ended(now, Attempt::first(), Some(said), &mut play.out);
        play.tick(20);
        assert_eq!(play.failure().kind, kind, "TYPES-20");
    }
}

const KILLED: &str =
    "the Spark stage failed: ExecutorLostFailure (executor 1 exited) Reason: Container killed by YARN";

#[test]
fn ranks_of_a_lost_executor_are_named_with_what_spark_says_of_it() {
    // Before its node counts as lost, and after that.
    for (at, before) in [
        (6, ""),
        (8, "the driver heard nothing from its task for 3.0 s; its executor or host probably ended; "),
    ] {
        let mut play = Play::placed();
        play.breaks(5, 1);
        play.tick(at);
        let now = play.at(at);
        play.state.stage_ended(now, Attempt::first(), Some(KILLED.into()), &mut play.out);
        play.ends(at, 0, RankState::Stopped);
        play.tick(20);
        let (kind, rank, host) = (play.failure().kind, play.failure().rank, play.failure().host.as_str());
        assert_eq!(
            (kind, rank, host),
            (FailureKind::LostNode, Some(1), "host-1"),
            "DRIVER-26: told at {at} s"
        );
        assert_eq!(
            play.failure().message,
            format!("rank 1 (host-1) is lost with its task: {before}{KILLED}")
        );
        assert_eq!(play.failure().ranks[1].state, RankState::Lost);
    }
}

#[test]
fn ranks_that_an_executor_ended_as_it_was_told_to_go_are_named_too() {
    // Spark may know of the end of the container before its last process has ended.
    for (ended_by_itself, goes_at) in [(true, 5), (false, 5), (true, 7), (false, 7)] {
        let mut play = Play::placed();
        if ended_by_itself {
            play.tell(5, 1, ended(1, RankState::Stopped, 0));
        }
        if goes_at == 5 {
            play.breaks(5, 1);
        }
        // Spark ends the tasks that are left before it says why the stage is over.
        play.tell(6, 0, ended(0, RankState::Stopped, 0));
        let interrupted = Some("its Spark task was killed".to_string());
        play.tell(6, 0, NodeMessage::Done { problem: None, interrupted, output: vec![] });
        let now = play.at(6);
        play.state.stage_ended(now, Attempt::first(), Some(KILLED.into()), &mut play.out);
        if goes_at == 7 {
            play.breaks(7, 1);
        }
        play.tick(20);
        let named = (play.failure().kind, play.failure().rank, play.failure().host.as_str());
        assert_eq!(named, (FailureKind::LostNode, Some(1), "host-1"), "DRIVER-26");
        assert_eq!(play.failure().message, format!("rank 1 (host-1) is lost with its task: {KILLED}"));
    }
}

#[test]
fn a_rank_that_missed_a_peer_which_ended_well_is_told_so() {
    let mut play = Play::placed();
    play.ends(5, 1, RankState::Finished);
    play.tell(6, 0, missed_a_peer(0));
    play.done(6, 0);
    let text = "rank 0 (host-0) raised RuntimeError; rank 1 had already succeeded, so perhaps not all ranks make \
                the same collective calls";
    assert_eq!((play.failure().rank, play.failure().message.as_str()), (Some(0), text), "TYPES-4");
}

#[test]
fn a_node_that_says_nothing_for_too_long_is_lost() {
    let mut play = Play::placed();
    for seconds in [10, 20, 30] {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tick(seconds);
        assert_eq!(play.state.outcome(), None);
    }
    play.tell(32, 0, NodeMessage::Ping);
    play.tick(32);
    assert!(play.orders().iter().any(|(p, order)| *p == 0 && matches!(order, HubMessage::Stop { .. })));
    play.ends(33, 0, RankState::Stopped);
    assert_eq!((play.failure().kind, play.failure().rank), (FailureKind::LostNode, Some(1)), "DRIVER-25");
    assert_eq!(play.failure().host, "host-1");
}

#[test]
fn nodes_that_never_report_after_a_stop_do_not_hold_up_the_outcome() {
    let mut play = Play::placed();
    let now = play.at(5);
    play.state.cancel(now, "enough", &mut play.out);
    for seconds in [6, 12, 18, 24] {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tell(seconds, 1, NodeMessage::Ping);
        play.tick(seconds);
    }
    play.tick(26);
    assert_eq!(play.failure().kind, FailureKind::Cancelled, "DRIVER-25");
}

#[test]
fn a_node_that_did_not_hear_of_the_stop_is_told_again_while_it_is_there() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Exited(1), 0));
    play.orders();
    let stops = |play: &mut Play| {
        let orders = play.orders();
        orders.iter().filter(|(p, order)| *p == 1 && matches!(order, HubMessage::Stop { .. })).count()
    };
    play.tell(6, 1, NodeMessage::Ping);
    assert_eq!(stops(&mut play), 1, "DRIVER-24");
    play.ends(7, 1, RankState::Stopped);
    stops(&mut play);
    play.tell(8, 1, NodeMessage::Ping);
    assert_eq!(stops(&mut play), 0);
}

#[test]
fn what_is_told_again_after_a_reconnect_counts_once() {
    let mut play = Play::placed();
    play.state.take_phases();
    let phase = |nth| NodeMessage::Phase { rank: 0, name: "epoch".into(), nth, age_us: 0 };
    let started = NodeMessage::RankStarted { rank: 0, pid: 1, age_us: 0 };
    play.tell(5, 0, phase(0));
    play.tell(6, 0, ended(0, RankState::Finished, 0));
    for fact in [started, phase(0), phase(1), ended(0, RankState::Finished, 0)] {
        play.tell(7, 0, fact);
    }
    let phases = play.state.take_phases();
    let names: Vec<_> = phases.iter().map(|phase| phase.point.name()).collect();
    assert_eq!(names, ["epoch", "rank ended", "epoch"], "TYPES-9");
    play.tell(8, 1, ended(1, RankState::Exited(3), 0));
    play.done(8, 0);
    play.done(8, 1);
    assert_eq!(play.failure().ranks[0].state, RankState::Finished);
}

#[test]
fn a_node_that_is_away_when_the_job_stops_is_waited_for_until_it_counts_as_lost() {
    let mut play = Play::placed();
    let now = play.at(5);
    play.state.disconnected(now, 0);
    play.ends(5, 1, RankState::Exited(3));
    play.tick(6);
    assert_eq!(play.state.outcome(), None, "DRIVER-24");
    play.tick(7);
    assert_eq!(play.failure().kind, FailureKind::ExitCode, "DRIVER-25");
    assert_eq!(play.failure().ranks[0].state, RankState::Stopped);
}

#[test]
fn a_rank_that_exits_well_while_another_is_missing_is_no_success() {
    let mut play = Play::placed();
    play.ends(5, 0, RankState::Finished);
    play.done(6, 1);
    assert_eq!(play.failure().kind, FailureKind::LostNode, "TYPES-4");
}

#[test]
fn a_task_that_spark_ended_is_explained_by_the_stage_where_it_speaks_in_time() {
    let interrupted = |play: &mut Play| {
        for partition in 0..2 {
            play.tell(5, partition, ended(partition, RankState::Stopped, 0));
            let why = Some("its Spark task was killed".into());
            play.tell(5, partition, NodeMessage::Done { problem: None, interrupted: why, output: vec![] });
        }
        assert_eq!(play.state.outcome(), None, "DRIVER-24: the stage's word is waited for");
    };

    let mut cancelled = Play::placed();
    interrupted(&mut cancelled);
    let now = cancelled.at(6);
    cancelled.state.cancel(now, "its job group was cancelled", &mut cancelled.out);
    assert_eq!(cancelled.failure().kind, FailureKind::Cancelled);

    let mut failed = Play::placed();
    interrupted(&mut failed);
    let now = failed.at(6);
    failed.state.stage_ended(
        now,
        Attempt::first(),
        Some("the executor ran out of disk".into()),
        &mut failed.out,
    );
    assert_eq!(failed.failure().message, "the executor ran out of disk");

    let mut silent = Play::placed();
    interrupted(&mut silent);
    silent.tick(8);
    assert_eq!(silent.failure().kind, FailureKind::LostNode, "DRIVER-25");
    assert_eq!(silent.failure().message, "its Spark task was killed");
}

#[test]
fn a_killed_rank_restarts_all_in_place_and_the_run_can_still_end_well() {
    let mut play = Play::with_restarts(2);
    play.fails(5, RankState::Signaled(9));
    let second = Attempt::first().next();
    let again =
        |order: &(u32, HubMessage)| matches!(order.1, HubMessage::Again { attempt, .. } if attempt == second);
    let orders = play.orders();
    assert_eq!(orders.iter().filter(|order| again(order)).count(), 2, "DRIVER-31: {orders:?}");
    assert_eq!(play.state.outcome(), None);
    let [restart] = &play.state.take_restarts()[..] else { panic!() };
    assert!(restart.in_place);
    assert_eq!(restart.line, "[phalanx] restart 1 of 2: rank 1 (host-1) was ended by SIGKILL");
    play.attempt = Attempt::new(1);
    play.starts(6);
    play.finishes(9);
    assert!(play.is_finished(), "DRIVER-23");
    let released = play.orders().iter().filter(|(_, order)| *order == HubMessage::Released).count();
    assert_eq!(released, 2, "who waited for the decision is let go");
}

#[test]
fn the_budget_is_the_jobs_and_the_failure_says_how_much_was_used() {
    let mut play = Play::with_restarts(2);
    for attempt in 0..3 {
        play.attempt = Attempt::new(attempt);
        if attempt > 0 {
            play.orders();
            play.starts(10 * u64::from(attempt));
        }
        assert_eq!(play.state.outcome(), None);
        play.fails(10 * u64::from(attempt) + 5, RankState::Signaled(11));
    }
    assert_eq!((play.failure().kind, play.failure().restarts), (FailureKind::Signal, 2), "DRIVER-30");
    assert!(play.failure().render().contains("restarted 2 times"));
}

#[test]
fn what_the_training_code_does_itself_is_not_tried_again() {
    let mut play = Play::with_restarts(3);
    play.fails(5, RankState::Exited(3));
    assert_eq!((play.failure().kind, play.failure().restarts), (FailureKind::ExitCode, 0));
    let released = play.orders().iter().filter(|(_, order)| *order == HubMessage::Released).count();
    assert_eq!(released, 2);
}

#[test]
fn a_cancel_is_never_followed_by_a_restart() {
    for lost_first in [false, true] {
        let mut play = Play::with_restarts(3);
        if lost_first {
            let now = play.at(4);
            play.state.disconnected(now, 1);
            play.tick(7);
        }
        let now = play.at(8);
        play.state.cancel(now, "enough", &mut play.out);
        play.ends(8, 0, RankState::Stopped);
        play.done(8, 1);
        assert_eq!(play.failure().kind, FailureKind::Cancelled);
    }
}

#[test]
fn a_lost_task_has_the_stage_submitted_again_and_its_old_nodes_are_not_heard() {
    let mut play = Play::with_restarts(1);
    let now = play.at(5);
    play.state.disconnected(now, 1);
    play.tick(8);
    play.tell(8, 0, ended(0, RankState::Stopped, 0));
    play.orders();
    play.done(8, 0);
    assert_eq!(play.orders(), [(0, HubMessage::Released)], "the task that is left ends");
    let [restart] = &play.state.take_restarts()[..] else { panic!() };
    assert!(!restart.in_place, "DRIVER-31");
    assert!(restart.line.contains("restart 1 of 1: rank 1 (host-1) is lost"), "{}", restart.line);
    assert!(
        !play.state.admits(Attempt::first()) && play.state.admits(Attempt::new(1)),
        "DRIVER-32, TYPES-10"
    );
    // The old stage's end is no news.
    let now = play.at(9);
    play.state.stage_ended(now, Attempt::first(), Some("ExecutorLostFailure".into()), &mut play.out);
    assert_eq!(play.state.outcome(), None, "DRIVER-32");
    play.attempt = Attempt::new(1);
    play.starts(12);
    play.finishes(15);
    assert!(play.is_finished());
}

#[test]
fn a_node_that_missed_the_order_is_told_again() {
    let mut play = Play::with_restarts(1);
    play.fails(5, RankState::Signaled(9));
    play.orders();
    // It came back over a new connection for the old attempt, and repeats its facts.
    play.tell(6, 1, ended(1, RankState::Signaled(9), 1000));
    play.done(6, 1);
    assert!(matches!(play.orders()[..], [(1, HubMessage::Again { attempt, .. })] if attempt.restarts() == 1));
    play.attempt = Attempt::new(1);
    play.starts(7);
    play.finishes(8);
    assert!(play.is_finished(), "DRIVER-32");
}

#[test]
fn a_task_of_another_try_of_the_stage_means_that_the_node_before_is_lost() {
    let mut play = Play::with_restarts(1);
    assert_eq!(play.comes(5, 1, SparkTask { number: 0, ..copy(1) }), Seat::Inherited, "DRIVER-51");
    play.tell(5, 1, NodeMessage::Join(join(1)));
    let orders = play.orders();
    assert!(
        orders.iter().any(|(p, order)| *p == 0 && matches!(order, HubMessage::Stop { .. })),
        "{orders:?}"
    );
    play.ends(6, 0, RankState::Stopped);
    let [restart] = &play.state.take_restarts()[..] else { panic!() };
    assert!(!restart.in_place);
}
