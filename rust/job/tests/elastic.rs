//! A job whose number of tasks changes, as the driver decides it.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use std::time::Duration;

use phalanx_job::driver::state::{Restarted, StageLook};
use phalanx_rendezvous::Seat;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::run_snapshot::{RestartCost, RestartKind};
use phalanx_types::{Attempt, FailureKind, Gang, Job, Notice, Policy, RankState};

use play::{GRACE, Play, copy, ended, join, task};

/// One task of two is enough.
fn elastic(policy: &mut Policy) {
    policy.gang = Gang::Tasks;
    policy.elastic.min_ranks = 1;
    policy.elastic.patience = Duration::from_secs(10);
    policy.elastic.cooldown = Duration::from_secs(60);
}

impl Play {
    /// The tasks that got places, in the order of their ranks.
    fn placed_tasks(&mut self) -> Vec<u32> {
        let mut places: Vec<(u32, u32)> = self
            .orders()
            .into_iter()
            .filter_map(|(partition, order)| match order {
                HubMessage::Place(place) => Some((place.ranks[0].rank, partition)),
                _ => None,
            })
            .collect();
        places.sort_unstable();
        places.into_iter().map(|(_, partition)| partition).collect()
    }

    fn runs(&mut self, seconds: u64, rank: u32, partition: u32) {
        self.tell(seconds, partition, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
    }

    /// What the caller is told.
    fn lines(&mut self) -> Vec<String> {
        self.state.take_notices()
    }

    /// The next attempt's tasks speak; `restart` is what the caller is told of it.
    fn goes_on(&mut self) -> String {
        let [restart] = &self.state.take_restarts()[..] else { panic!("no restart") };
        assert!(restart.in_place, "DRIVER-31");
        self.attempt = restart.attempt;
        restart.line.clone()
    }

    /// One task of two has begun alone, and the other has come since.
    fn with_a_newcomer(change: impl FnOnce(&mut Policy)) -> Play {
        let mut play = Play::joining(change);
        play.joins(0, 1);
        play.tick(10);
        assert_eq!(play.placed_tasks(), [1]);
        play.runs(11, 0, 1);
        play.joins(12, 0);
        play
    }

    /// The nodes that are told to end their ranks.
    fn stopped(&mut self) -> Vec<u32> {
        let orders = self.orders().into_iter();
        orders.filter(|(_, order)| matches!(order, HubMessage::Stop { .. })).map(|(node, _)| node).collect()
    }
}

#[test]
fn a_run_begins_with_enough_tasks_once_its_patience_is_over() {
    let mut play = Play::joining(elastic);
    play.tick(100);
    assert_eq!(play.orders(), [], "DRIVER-67: none is not enough");
    play.joins(100, 1);
    play.tick(109);
    assert_eq!(play.placed_tasks(), [0; 0], "DRIVER-67");
    play.tick(110);
    assert_eq!(play.placed_tasks(), [1], "DRIVER-67");
    assert_eq!(play.state.world_size(), 1);
    play.runs(111, 0, 1);
    play.tell(112, 1, ended(0, RankState::Finished, 0));
    play.done(112, 1);
    assert!(play.is_finished(), "the other task is not waited for");
}

#[test]
fn a_run_whose_tasks_are_all_there_waits_for_nobody() {
    let mut play = Play::joining(elastic);
    play.joins(0, 1);
    play.joins(0, 0);
    assert_eq!(play.placed_tasks(), [0, 1], "DRIVER-67");
}

#[test]
fn too_few_tasks_end_the_run_with_what_is_missing() {
    let mut play = Play::joining(|policy| {
        elastic(policy);
        policy.gang_wait = Duration::from_secs(60);
    });
    play.tick(60);
    assert_eq!(play.failure().kind, FailureKind::Start);
    assert!(play.failure().message.contains("0 of 1 tasks have joined"), "{}", play.failure().message);
}

#[test]
fn a_task_that_comes_while_others_run_waits_for_a_checkpoint_and_is_rank_1_then() {
    let mut play = Play::with_a_newcomer(elastic);
    assert_eq!(play.orders(), [(0, HubMessage::Spare)], "DRIVER-69: it waits without a limit");
    play.tell(13, 0, NodeMessage::Ping);
    assert_eq!(play.orders(), [(0, HubMessage::Pong)]);
    play.tell(20, 1, NodeMessage::Saved { step: 40 });
    assert_eq!(play.stopped(), [1], "DRIVER-69: who waits has nothing to end");
    play.tell(21, 0, NodeMessage::Ping);
    assert_eq!(play.orders(), [(0, HubMessage::Pong)], "DRIVER-69");
    play.tell(21, 1, ended(0, RankState::Stopped, 0));
    play.done(21, 1);
    assert_eq!(play.goes_on(), "[phalanx] resized, restart 1: 1 task more is there", "DRIVER-70");
    let again = |order: &HubMessage| matches!(order, HubMessage::Again { .. });
    let orders = play.orders();
    assert!(orders.iter().map(|(node, _)| *node).eq([0, 1]) && orders.iter().all(|(_, order)| again(order)));
    play.joins(21, 0);
    assert_eq!(play.placed_tasks(), [0; 0], "the other comes in a moment");
    play.joins(21, 1);
    assert_eq!(play.placed_tasks(), [1, 0], "DRIVER-68");
    play.lines();
    play.runs(22, 0, 1);
    play.runs(23, 1, 0);
    assert_eq!(play.lines(), ["[phalanx] 2 ranks run again; 3.0 s lost"]);
    let cost = RestartCost { ranks: 2, seconds: 3.0, steps: None };
    let restarted = Restarted { attempt: Attempt::new(1), kind: RestartKind::Resized, cost };
    assert_eq!(play.state.take_restarted(), [restarted]);
    play.tell(24, 0, ended(1, RankState::Finished, 0));
    play.tell(24, 1, ended(0, RankState::Finished, 0));
    (0..2).for_each(|partition| play.done(24, partition));
    assert!(play.is_finished());
}

#[test]
fn a_run_grows_at_most_once_in_its_cooldown_and_never_without_a_checkpoint() {
    let mut play = Play::with_a_newcomer(elastic);
    play.orders();
    for seconds in [20, 100, 1000] {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tell(seconds, 1, NodeMessage::Ping);
        play.tick(seconds);
    }
    assert_eq!(play.stopped(), [0; 0], "DRIVER-69");
    // It grows, loses the other task again, and another comes.
    play.tell(1000, 1, NodeMessage::Saved { step: 1 });
    assert_eq!(play.stopped(), [1], "DRIVER-69");
    play.tell(1001, 1, ended(0, RankState::Stopped, 0));
    play.done(1001, 1);
    play.goes_on();
    play.joins(1001, 0);
    play.joins(1001, 1);
    assert_eq!(play.placed_tasks(), [1, 0]);
    (0..).zip([1, 0]).for_each(|(rank, task)| play.runs(1002, rank, task));
    play.breaks(1003, 0);
    play.tick(1006);
    play.tell(1006, 1, ended(0, RankState::Stopped, 0));
    play.done(1006, 1);
    play.goes_on();
    play.joins(1006, 1);
    play.tick(1006);
    assert_eq!(play.placed_tasks(), [1]);
    play.runs(1007, 0, 1);
    assert_eq!(play.comes(1008, 0, copy(1)), Seat::Inherited);
    play.tell(1008, 0, NodeMessage::Join(join(0)));
    play.tell(1059, 1, NodeMessage::Saved { step: 2 });
    assert_eq!(play.stopped(), [0; 0], "DRIVER-69: 59 s after the last growth");
    play.tell(1060, 1, NodeMessage::Saved { step: 3 });
    assert_eq!(play.stopped(), [1], "DRIVER-69");
}

#[test]
fn tasks_that_come_one_after_the_other_are_one_growth_and_the_last_of_all_is_waited_for_no_longer() {
    let one_of_four = || {
        let mut job = Job::new("state", "t", 4, 4).unwrap();
        elastic(&mut job.policy);
        let mut play = Play::of(job);
        play.joins(0, 1);
        play.tick(10);
        play.runs(11, 0, 1);
        play.joins(12, 0);
        play.joins(20, 2);
        play.orders();
        for seconds in [21, 29] {
            play.tell(seconds, 1, NodeMessage::Saved { step: seconds });
            assert_eq!(play.stopped(), [0; 0], "DRIVER-69: the last has come 9 s ago");
        }
        play
    };
    for (comes, saves, more) in [(None, 30, "2 tasks"), (Some(25), 26, "3 tasks"), (Some(25), 30, "3 tasks")]
    {
        let mut play = one_of_four();
        if let Some(seconds) = comes {
            play.joins(seconds, 3);
            play.orders();
        }
        play.tell(saves, 1, NodeMessage::Saved { step: 40 });
        assert_eq!(play.stopped(), [1], "DRIVER-69");
        play.tell(31, 1, ended(0, RankState::Stopped, 0));
        play.done(31, 1);
        assert_eq!(play.goes_on(), format!("[phalanx] resized, restart 1: {more} more are there"));
    }
}

#[test]
fn a_run_that_loses_a_task_goes_on_with_the_others_and_no_restart_is_counted() {
    let mut play = Play::under(elastic);
    play.tell(2, 1, NodeMessage::Saved { step: 10 });
    play.orders();
    play.breaks(5, 0);
    play.tick(8);
    assert_eq!(play.stopped(), [1]);
    play.tell(8, 1, ended(1, RankState::Stopped, 0));
    play.done(8, 1);
    assert!(play.goes_on().starts_with("[phalanx] resized, restart 1: "), "DRIVER-70");
    assert!(matches!(play.orders()[..], [(1, HubMessage::Again { .. })]));
    play.joins(8, 1);
    play.tick(8);
    assert_eq!(play.placed_tasks(), [1], "DRIVER-67: at once");
    // The lost task comes back: Spark is to start it again.
    play.attempt = Attempt::first();
    play.tell(9, 0, NodeMessage::Ping);
    assert!(matches!(play.orders().last(), Some((0, HubMessage::Stop { .. }))));
    play.attempt = Attempt::new(1);
    play.runs(9, 0, 1);
    // Another has its seat, and waits.
    assert_eq!(play.comes(10, 0, copy(1)), Seat::Inherited, "DRIVER-52");
    play.tell(10, 0, NodeMessage::Join(join(0)));
    assert!(play.orders().contains(&(0, HubMessage::Spare)), "DRIVER-69");
}

#[test]
fn with_too_few_left_a_lost_task_is_replaced_within_the_budget_of_restarts() {
    let fewer = |policy: &mut Policy| {
        elastic(policy);
        policy.elastic.min_ranks = 2;
    };
    let mut play = Play::under(fewer);
    play.breaks(5, 0);
    play.tick(8);
    play.tell(8, 1, ended(1, RankState::Stopped, 0));
    play.done(8, 1);
    assert_eq!(play.failure().kind, FailureKind::LostNode, "DRIVER-30: there are no restarts");
}

#[test]
fn a_job_that_waits_in_vain_for_a_lost_task_says_which_slots_spark_has() {
    let mut play = Play::under(|policy| {
        elastic(policy);
        policy.elastic.min_ranks = 2;
        policy.max_restarts = 1;
        policy.gang_wait = Duration::from_secs(60);
    });
    play.breaks(5, 0);
    play.tick(8);
    play.tell(8, 1, ended(1, RankState::Stopped, 0));
    play.done(8, 1);
    assert!(play.goes_on().starts_with("[phalanx] restart 1 of 1: "));
    play.joins(8, 1);
    let look = StageLook { running: Some(1), slots: 1, free: 0 };
    play.state.stage_seen(play.at(9), Attempt::first(), look);
    for seconds in 9..68 {
        play.tell(seconds, 1, NodeMessage::Ping);
        play.tick(seconds);
    }
    assert!(play.state.outcome().is_none(), "it waits for as long as a gang does");
    play.tick(68);
    play.done(68, 1);
    let said = &play.failure().message;
    assert!(said.starts_with("Spark did not bring the executors for 2 tasks within 60s"), "{said}");
    assert!(said.contains("it has 1 of 2 task slots"), "{said}");
}

#[test]
fn code_that_raises_ends_an_elastic_run() {
    let mut play = Play::under(elastic);
    play.fails(5, RankState::Raised);
    assert_eq!(play.failure().kind, FailureKind::Exception);
}

#[test]
fn a_newcomer_that_goes_changes_nothing_and_one_that_stays_is_let_go_at_the_end() {
    let mut play = Play::with_a_newcomer(elastic);
    play.orders();
    play.tell(
        13,
        0,
        NodeMessage::Done { problem: Some("the disk is full".into()), interrupted: None, output: vec![] },
    );
    assert_eq!(play.orders(), [(0, HubMessage::Released)]);
    assert_eq!(play.state.outcome(), None);
    play.joins(14, 0);
    play.orders();
    play.tell(15, 1, ended(0, RankState::Finished, 0));
    play.done(15, 1);
    assert!(play.is_finished());
    assert!(play.orders().contains(&(0, HubMessage::Released)));
}

#[test]
fn the_caller_can_end_a_run_that_is_about_to_grow() {
    let mut play = Play::with_a_newcomer(elastic);
    play.tell(20, 1, NodeMessage::Saved { step: 40 });
    let now = play.at(20);
    play.state.cancel(now, "enough", &mut play.out);
    play.tell(21, 1, ended(0, RankState::Stopped, 0));
    play.done(21, 1);
    assert_eq!(play.failure().kind, FailureKind::Cancelled);
    assert_eq!(play.state.take_restarts(), []);
}

#[test]
fn a_host_that_is_to_go_is_left_and_its_task_starts_elsewhere() {
    let mut play = Play::under(|policy| {
        elastic(policy);
        policy.max_restarts = 1;
    });
    play.orders();
    let now = play.at(5);
    play.state.notice(now, 0, 1, Notice { in_ms: None, reason: "spot".into() }, &mut play.out);
    play.orders();
    let left = |rank: u32| {
        let NodeMessage::RankEnded { mut exit } = ended(rank, RankState::Raised, 0) else { panic!() };
        let kind = phalanx_types::RankErrorKind::Preempted;
        exit.error = Some(phalanx_types::RankError { kind, ..phalanx_types::RankError::default() });
        NodeMessage::RankEnded { exit }
    };
    for rank in 0..2 {
        play.tell(6, rank, left(rank));
        play.done(6, rank);
    }
    assert!(play.goes_on().starts_with("[phalanx] preempted, restart 1: "));
    let orders = play.orders();
    assert!(orders.iter().any(|(node, order)| *node == 0 && matches!(order, HubMessage::Again { .. })));
    assert!(
        orders.iter().any(|(node, order)| *node == 1 && matches!(order, HubMessage::GivenUp { .. })),
        "DRIVER-67: {orders:?}"
    );
    assert_eq!(play.comes(7, 0, task(1)), Seat::Yours);
    play.tell(7, 0, NodeMessage::Join(join(0)));
    play.tick(7);
    assert_eq!(play.placed_tasks(), [0], "DRIVER-67");
    // Another executor of that host brings the task back.
    play.tell(8, 0, NodeMessage::RankStarted { rank: 0, pid: 1, age_us: 0 });
    play.comes(9, 1, task(2));
    play.tell(9, 1, NodeMessage::Join(join(1)));
    play.orders();
    play.tell(20, 0, NodeMessage::Saved { step: 40 });
    let orders = play.orders();
    let grows = orders.iter().any(|(node, order)| *node == 0 && matches!(order, HubMessage::Stop { .. }));
    assert!(grows, "DRIVER-67: {orders:?}");
}

#[test]
fn who_may_still_be_there_is_waited_for_two_seconds_in_all_and_comes_back_as_a_newcomer() {
    let mut job = Job::new("state", "t", 5, 5).unwrap();
    job.policy.grace = GRACE;
    elastic(&mut job.policy);
    let mut play = Play::of(job);
    (0..5).for_each(|partition| play.joins(0, partition));
    assert_eq!(play.placed_tasks(), [0, 1, 2, 3, 4]);
    (0..5).for_each(|rank| play.runs(1, rank, rank));
    play.breaks(10, 0);
    play.tick(12);
    assert_eq!(play.stopped(), [1, 2, 3, 4], "task 0 is lost");
    let stops = |play: &mut Play, seconds, node| {
        play.tell(seconds, node, ended(node, RankState::Stopped, 0));
        play.done(seconds, node);
    };
    (1..4).for_each(|node| stops(&mut play, 13, node));
    play.breaks(14, 1);
    stops(&mut play, 14, 4);
    assert_eq!(play.state.take_restarts(), [], "task 1 may come back");
    play.breaks(15, 2);
    let next = play.state.tick(play.at(15), &mut play.out);
    assert_eq!(next, Some(play.at(16)), "it looks again then");
    play.tick(16);
    assert!(play.goes_on().starts_with("[phalanx] resized, restart 1: "), "DRIVER-71: without task 2, too");
    play.orders();
    (3..5).for_each(|partition| play.joins(16, partition));
    play.tick(17);
    assert_eq!(play.placed_tasks(), [3, 4], "DRIVER-67: it left its connection two seconds ago");
    play.joins(18, 2);
    assert_eq!(play.orders(), [(2, HubMessage::Spare)], "DRIVER-69: it waits for a checkpoint");
}
