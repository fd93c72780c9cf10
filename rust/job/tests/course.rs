//! The course of a job by itself: facts and time in, orders and an outcome out.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

use std::time::{Duration, Instant};

use phalanx_job::course::{Course, Outcome};
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage, RankActivity};
use phalanx_types::stacks::RankStacks;
use phalanx_types::{Failure, FailureKind, Job, Join, Policy, RankEnd, RankState};

struct Play {
    course: Course,
    out: Outbox,
    began: Instant,
    /// The attempt whose nodes speak.
    attempt: u32,
}

impl Play {
    /// Two tasks of a rank each, placed.
    fn placed() -> Play {
        Play::with_restarts(0)
    }

    fn with_restarts(max_restarts: u32) -> Play {
        Play::under(|policy| policy.max_restarts = max_restarts)
    }

    fn under(change: impl FnOnce(&mut Policy)) -> Play {
        let began = Instant::now();
        let mut job = Job::new("course", "t", 2, 2).unwrap();
        job.policy.grace = Duration::from_secs(5);
        change(&mut job.policy);
        let mut play = Play { course: Course::new(job, began), out: Outbox::default(), began, attempt: 0 };
        play.starts(0);
        play
    }

    fn hanging(seconds: u64) -> Play {
        Play::under(|policy| policy.hang_timeout = Duration::from_secs(seconds))
    }

    /// Both nodes join the present attempt and start their ranks.
    fn starts(&mut self, seconds: u64) {
        for partition in 0..2 {
            self.tell(seconds, partition, NodeMessage::Join(join(partition)));
        }
        assert!(matches!(self.orders()[..], [(0, HubMessage::Place(_)), (1, HubMessage::Place(_))]));
        for rank in 0..2 {
            self.tell(seconds + 1, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
        }
    }

    /// Rank 1 ends like this, rank 0 is stopped, and both nodes are done.
    fn fails(&mut self, seconds: u64, state: RankState) {
        self.tell(seconds, 1, ended(1, state, 0));
        self.done(seconds, 1);
        self.tell(seconds, 0, ended(0, RankState::Stopped, 0));
        self.orders();
        self.done(seconds, 0);
    }

    fn finishes(&mut self, seconds: u64) {
        for rank in 0..2 {
            self.tell(seconds, rank, ended(rank, RankState::Finished, 0));
            self.done(seconds, rank);
        }
    }

    fn is_finished(&self) -> bool {
        matches!(self.course.outcome(), Some(Outcome::Finished(_)))
    }

    fn at(&self, seconds: u64) -> Instant {
        self.began + Duration::from_secs(seconds)
    }

    fn tell(&mut self, seconds: u64, partition: u32, message: NodeMessage) {
        let now = self.at(seconds);
        self.course.message(now, partition, self.attempt, message, &mut self.out);
    }

    fn tick(&mut self, seconds: u64) {
        let now = self.at(seconds);
        self.course.tick(now, &mut self.out);
    }

    fn orders(&mut self) -> Vec<(u32, HubMessage)> {
        self.out.take()
    }

    fn done(&mut self, seconds: u64, partition: u32) {
        self.tell(seconds, partition, NodeMessage::Done { problem: None, interrupted: None, output: vec![] });
    }

    fn failure(&self) -> &Failure {
        match self.course.outcome() {
            Some(Outcome::Failed(failure)) => failure,
            other => panic!("a failure was expected, not {other:?}"),
        }
    }
}

fn join(partition: u32) -> Join {
    Join {
        partition,
        host: format!("host-{partition}"),
        address: [127, 0, 0, 1].into(),
        interface: String::new(),
        addresses: vec![],
        store_port: 1,
        gpus: vec![],
    }
}

/// A rank that ended `ago_ms` before it is told.
fn ended(rank: u32, state: RankState, ago_ms: i64) -> NodeMessage {
    let end = RankEnd {
        rank,
        host: format!("host-{rank}"),
        state,
        message: String::new(),
        error: None,
        last_lines: vec![],
        log_path: String::new(),
        at_us: -ago_ms * 1000,
        last_output_us: None,
    };
    NodeMessage::RankEnded { end: Box::new(end) }
}

#[test]
fn a_job_is_finished_when_every_rank_ended_well_and_every_node_is_done() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Finished, 0));
    play.done(5, 0);
    play.tell(6, 1, ended(1, RankState::Finished, 0));
    assert_eq!(play.course.outcome(), None, "COURSE-1");
    play.done(6, 1);
    let Some(Outcome::Finished(ranks)) = play.course.outcome() else { panic!("{:?}", play.course.outcome()) };
    let states: Vec<_> = ranks.iter().map(|r| (r.rank, r.state.as_str())).collect();
    assert_eq!(states, [(0, "finished"), (1, "finished")]);
}

#[test]
fn a_cause_that_is_reported_later_than_its_victim_is_still_the_cause() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Exited(1), 100));
    let stopped = play.orders().iter().filter(|(_, order)| matches!(order, HubMessage::Stop { .. })).count();
    assert_eq!(stopped, 2, "COURSE-2");
    assert_eq!(play.course.outcome(), None, "COURSE-2: not before the others have reported");
    play.tell(6, 1, ended(1, RankState::Signaled(9), 2000));
    play.done(6, 0);
    play.done(6, 1);
    assert_eq!((play.failure().rank, play.failure().signal), (Some(1), Some(9)));
}

#[test]
fn a_node_that_says_nothing_for_too_long_is_lost() {
    let mut play = Play::placed();
    for seconds in [10, 20, 30] {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tick(seconds);
        assert_eq!(play.course.outcome(), None);
    }
    play.tell(32, 0, NodeMessage::Ping);
    play.tick(32);
    assert!(play.orders().iter().any(|(p, order)| *p == 0 && matches!(order, HubMessage::Stop { .. })));
    play.tell(33, 0, ended(0, RankState::Stopped, 0));
    play.done(33, 0);
    assert_eq!((play.failure().kind, play.failure().rank), (FailureKind::LostNode, Some(1)), "COURSE-3");
    assert_eq!(play.failure().host, "host-1");
}

#[test]
fn nodes_that_never_report_after_a_stop_do_not_hold_up_the_outcome() {
    let mut play = Play::placed();
    let now = play.at(5);
    play.course.cancel(now, "enough", &mut play.out);
    for seconds in [6, 12, 18, 24] {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tell(seconds, 1, NodeMessage::Ping);
        play.tick(seconds);
    }
    play.tick(26);
    assert_eq!(play.failure().kind, FailureKind::Cancelled, "COURSE-3");
}

#[test]
fn a_rank_that_exits_well_while_another_is_missing_is_no_success() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Finished, 0));
    play.done(5, 0);
    play.done(6, 1);
    assert_eq!(play.failure().kind, FailureKind::LostNode, "FAIL-1");
}

#[test]
fn a_task_that_spark_ended_is_explained_by_the_stage_where_it_speaks_in_time() {
    let interrupted = |play: &mut Play| {
        for partition in 0..2 {
            play.tell(5, partition, ended(partition, RankState::Stopped, 0));
            let why = Some("its Spark task was killed".into());
            play.tell(5, partition, NodeMessage::Done { problem: None, interrupted: why, output: vec![] });
        }
        assert_eq!(play.course.outcome(), None, "COURSE-2: the stage's word is waited for");
    };

    let mut cancelled = Play::placed();
    interrupted(&mut cancelled);
    let now = cancelled.at(6);
    cancelled.course.cancel(now, "its job group was cancelled", &mut cancelled.out);
    assert_eq!(cancelled.failure().kind, FailureKind::Cancelled);

    let mut failed = Play::placed();
    interrupted(&mut failed);
    let now = failed.at(6);
    failed.course.stage_ended(now, 0, Some("the executor ran out of disk".into()), &mut failed.out);
    assert_eq!(failed.failure().message, "the executor ran out of disk");

    let mut silent = Play::placed();
    interrupted(&mut silent);
    silent.tick(8);
    assert_eq!(silent.failure().kind, FailureKind::LostNode, "COURSE-3");
    assert_eq!(silent.failure().message, "its Spark task was killed");
}

#[test]
fn a_killed_rank_restarts_all_in_place_and_the_run_can_still_end_well() {
    let mut play = Play::with_restarts(2);
    play.fails(5, RankState::Signaled(9));
    let again = |order: &(u32, HubMessage)| matches!(order.1, HubMessage::Again { attempt: 1, .. });
    let orders = play.orders();
    assert_eq!(orders.iter().filter(|order| again(order)).count(), 2, "RESTART-2: {orders:?}");
    assert_eq!(play.course.outcome(), None);
    let [restart] = &play.course.take_restarts()[..] else { panic!() };
    assert!(restart.in_place);
    assert_eq!(restart.line, "[phalanx] restart 1 of 2: rank 1 (host-1) was ended by SIGKILL");
    play.attempt = 1;
    play.starts(6);
    play.finishes(9);
    assert!(play.is_finished(), "COURSE-1");
    let released = play.orders().iter().filter(|(_, order)| *order == HubMessage::Released).count();
    assert_eq!(released, 2, "who waited for the decision is let go");
}

#[test]
fn the_budget_is_the_jobs_and_the_failure_says_how_much_was_used() {
    let mut play = Play::with_restarts(2);
    for attempt in 0..3 {
        play.attempt = attempt;
        if attempt > 0 {
            play.orders();
            play.starts(10 * u64::from(attempt));
        }
        assert_eq!(play.course.outcome(), None);
        play.fails(10 * u64::from(attempt) + 5, RankState::Signaled(11));
    }
    assert_eq!((play.failure().kind, play.failure().restarts), (FailureKind::Signal, 2), "RESTART-1");
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
            play.course.disconnected(now, 1);
            play.tick(7);
        }
        let now = play.at(8);
        play.course.cancel(now, "enough", &mut play.out);
        play.tell(8, 0, ended(0, RankState::Stopped, 0));
        play.done(8, 0);
        play.done(8, 1);
        assert_eq!(play.failure().kind, FailureKind::Cancelled);
    }
}

#[test]
fn a_lost_task_has_the_stage_submitted_again_and_its_old_nodes_are_not_heard() {
    let mut play = Play::with_restarts(1);
    let now = play.at(5);
    play.course.disconnected(now, 1);
    play.tick(8);
    play.tell(8, 0, ended(0, RankState::Stopped, 0));
    play.orders();
    play.done(8, 0);
    assert_eq!(play.orders(), [(0, HubMessage::Released)], "the task that is left ends");
    let [restart] = &play.course.take_restarts()[..] else { panic!() };
    assert!(!restart.in_place, "RESTART-2");
    assert!(restart.line.contains("restart 1 of 1: rank 1 (host-1) is lost"), "{}", restart.line);
    assert!(!play.course.admits(0) && play.course.admits(1), "RESTART-3");
    // The old stage's end is no news.
    let now = play.at(9);
    play.course.stage_ended(now, 0, Some("ExecutorLostFailure".into()), &mut play.out);
    assert_eq!(play.course.outcome(), None, "RESTART-3");
    play.attempt = 1;
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
    assert!(matches!(play.orders()[..], [(1, HubMessage::Again { attempt: 1, .. })]));
    play.attempt = 1;
    play.starts(7);
    play.finishes(8);
    assert!(play.is_finished(), "RESTART-3");
}

#[test]
fn a_task_that_spark_started_again_by_itself_is_a_lost_node_first() {
    let mut play = Play::with_restarts(1);
    let other = Join { store_port: 2, ..join(1) };
    play.tell(5, 1, NodeMessage::Join(other));
    let orders = play.orders();
    assert!(
        orders.iter().any(|(p, order)| *p == 0 && matches!(order, HubMessage::Stop { .. })),
        "{orders:?}"
    );
    play.tell(6, 0, ended(0, RankState::Stopped, 0));
    play.done(6, 0);
    let [restart] = &play.course.take_restarts()[..] else { panic!() };
    assert!(!restart.in_place);
}

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
    assert_eq!(play.orders(), [], "HANG-1: rank 0 may go on");
    play.tell(13, 0, doing(0, 12_000));
    let orders = play.orders();
    assert!(orders.iter().all(|(_, order)| matches!(order, HubMessage::Stacks { request: 1 })), "{orders:?}");
    assert_eq!(orders.len(), 2, "HANG-2");
    play.tell(13, 0, stacks(0, 1, "in all_reduce"));
    assert_eq!(play.orders(), []);
    play.tell(13, 1, stacks(1, 1, "in lock"));
    assert!(matches!(play.orders()[..], [(0, HubMessage::Stop { .. }), (1, HubMessage::Stop { .. })]));
    for rank in 0..2 {
        play.tell(14, rank, ended(rank, RankState::Stopped, 0));
        play.done(14, rank);
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
    assert!(matches!(play.orders()[..], [(0, HubMessage::Stop { .. }), ..]), "HANG-2");
    for rank in 0..2 {
        play.tell(19, rank, ended(rank, RankState::Stopped, 0));
        play.done(19, rank);
    }
    assert!(play.failure().stacks.contains("(its node did not answer in time)"));
}

#[test]
fn a_rank_that_ended_is_not_waited_for_and_without_a_time_out_nothing_hangs() {
    let mut play = Play::hanging(10);
    play.tell(5, 0, ended(0, RankState::Finished, 0));
    play.tell(13, 1, doing(1, 12_000));
    assert!(matches!(play.orders()[..], [(_, HubMessage::Stacks { .. }), ..]), "HANG-1");
    let mut play = Play::placed();
    for rank in 0..2 {
        play.tell(13, rank, doing(rank, 12_000_000));
    }
    assert_eq!(play.orders(), []);
}

#[test]
fn a_stopped_process_is_the_one_that_hangs() {
    let mut play = Play::hanging(10);
    play.tell(12, 0, doing(0, 12_000));
    let stopped = RankActivity { rank: 1, idle_ms: 10_500, stopped: true, ..RankActivity::default() };
    play.tell(12, 1, NodeMessage::Activity { ranks: vec![stopped] });
    play.tick(18);
    for rank in 0..2 {
        play.tell(19, rank, ended(rank, RankState::Stopped, 0));
        play.done(19, rank);
    }
    assert_eq!(play.failure().rank, Some(1));
    assert!(play.failure().message.ends_with("; its process is stopped"), "{}", play.failure().message);
}

#[test]
fn the_caller_can_ask_for_stacks_and_the_run_goes_on() {
    let mut play = Play::placed();
    let now = play.at(3);
    play.course.ask_for_stacks(now, &mut play.out);
    assert_eq!(play.orders().len(), 2);
    for rank in 0..2 {
        play.tell(3, rank, stacks(rank, 1, "in train"));
    }
    assert_eq!(play.course.take_stacks()[0].len(), 2);
    assert_eq!(play.orders(), []);
    assert_eq!(play.course.outcome(), None);
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
        let new = play.course.take_notices();
        assert!(new.is_empty() || seconds >= 14 + 30, "PACE-1: {new:?} at {seconds}");
        notices.extend(new);
    }
    let expected = "[phalanx] rank 1 (host-1) is slow: 0.25 s a step, the median of the ranks is 0.10 s";
    assert_eq!(notices, [expected], "PACE-1");
    assert_eq!(play.course.status(), "training, step 19");
    assert_eq!(play.course.take_reports().len(), 40);
}

#[test]
fn the_status_says_how_far_the_job_is() {
    let job = Job::new("course", "t", 2, 2).unwrap();
    let began = Instant::now();
    let mut play = Play { course: Course::new(job, began), out: Outbox::default(), began, attempt: 0 };
    assert_eq!(play.course.status(), "waiting for 2 of 2 tasks");
    play.tell(0, 1, NodeMessage::Join(join(1)));
    assert_eq!(play.course.status(), "waiting for 1 of 2 tasks");
    play.tell(0, 0, NodeMessage::Join(join(0)));
    assert_eq!(play.course.status(), "starting ranks");
    for rank in 0..2 {
        play.tell(1, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
    }
    assert_eq!(play.course.status(), "training");
    play.finishes(3);
    assert_eq!(play.course.status(), "over");
}

#[test]
fn a_hang_is_tried_again_in_place_and_looked_for_again() {
    let mut play = Play::under(|policy| {
        policy.max_restarts = 1;
        policy.hang_timeout = Duration::from_secs(10);
    });
    for attempt in 0..2 {
        play.attempt = attempt;
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
