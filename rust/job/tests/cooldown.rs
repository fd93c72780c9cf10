//! Hosts that fail again and again: whose fault a failure is, and what becomes of who comes from such a host.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use std::time::Duration;

use phalanx_job::driver::state::SeatChange;
use phalanx_rendezvous::Seat;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{
    Attempt, FailureKind, Gang, Notice, Policy, RankError, RankErrorKind, RankState, SparkTask,
};

use play::{Play, copy, ended, join, on};

fn of_tasks(policy: &mut Policy) {
    policy.max_restarts = 9;
    policy.gang = Gang::Tasks;
    policy.restart_on = FailureKind::ALL.into();
}

/// Another task of that job, which Spark starts since the one before went.
fn retry(host: &str, job: u32) -> SparkTask {
    let number = 1000 + u64::from(job);
    SparkTask { instance: number, id: number, number: 1, ..on(host, job) }
}

fn lines(play: &mut Play) -> Vec<String> {
    play.state.take_notices().into_iter().filter(|line| line.contains(" failed")).collect()
}

/// The node of partition 1, on host-1, is lost; that of partition 0 begins again.
fn loses_host_1(play: &mut Play, seconds: u64) {
    play.breaks(seconds, 1);
    play.tick(seconds + 3);
    play.tell(seconds + 3, 0, ended(0, RankState::Stopped, 0));
    play.done(seconds + 3, 0);
    play.orders();
    play.attempt = play.attempt.next();
}

/// The task `of_1` has the seat of partition 1 and both start their ranks.
fn starts(play: &mut Play, seconds: u64, of_1: SparkTask) {
    play.tell(seconds, 0, NodeMessage::Join(join(0)));
    assert!(matches!(play.comes(seconds, 1, of_1), Seat::Inherited | Seat::Yours));
    play.tell(seconds, 1, NodeMessage::Join(join(1)));
    assert!(matches!(play.orders()[..], [(0, HubMessage::Place(_)), (1, HubMessage::Place(_))]));
    for rank in 0..2 {
        play.tell(seconds, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
    }
}

/// host-1 has failed twice, the second time at 25 s, and tasks join the third attempt from 28 s on.
fn after_two(change: impl FnOnce(&mut Policy)) -> Play {
    let mut play = Play::under(|policy| {
        of_tasks(policy);
        change(policy);
    });
    loses_host_1(&mut play, 10);
    assert_eq!(lines(&mut play), [""; 0], "DRIVER-62: once may happen");
    starts(&mut play, 20, on("host-1", 2));
    loses_host_1(&mut play, 25);
    play
}

#[test]
fn a_host_that_is_lost_twice_is_left_alone_and_the_caller_is_told_once() {
    let mut play = after_two(|_| {});
    let [line] = &lines(&mut play)[..] else { panic!("DRIVER-62") };
    for part in [
        "[phalanx] host-1 has failed twice, the last time: ",
        "wait for 3600 s (spark.phalanx.host.cooldown)",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let shown = play.state.cooling_hosts(play.at(28), 9, |_| 7.0);
    assert_eq!((shown[0].host.as_str(), shown[0].failures, shown[0].until), ("host-1", 2, 7.0));
    // Spark starts its task again, where it was.
    assert_eq!(play.comes(30, 1, retry("host-1", 2)), Seat::Spare, "DRIVER-64");
    let wanted = SeatChange::Wanted { attempt: Attempt::first(), partition: 1 };
    assert_eq!(play.state.take_seat_changes(), [wanted], "DRIVER-64");
    // It is asked about again and again, and may go and come back.
    assert_eq!(play.comes(31, 1, retry("host-1", 2)), Seat::Spare, "DRIVER-64");
    assert_eq!(play.state.take_seat_changes(), [], "DRIVER-64: once for each job");
    // The next one goes there, too, and the one after that elsewhere.
    assert_eq!(play.comes(32, 1, on("host-1", 3)), Seat::Spare, "DRIVER-64");
    assert_eq!(play.state.take_seat_changes(), [wanted], "DRIVER-64");
    starts(&mut play, 40, on("host-2", 4));
    let taken = SeatChange::Taken { attempt: Attempt::first(), partition: 1, stage: 4 };
    assert_eq!(play.state.take_seat_changes(), [taken], "DRIVER-64: the other jobs end");
    for waits in [retry("host-1", 2), on("host-1", 3)] {
        assert_eq!(play.comes(41, 1, waits), Seat::Spare, "DRIVER-51: Spark ends none of them");
    }
    assert!(!play.state.is_lost(1), "DRIVER-51");
    assert_eq!((lines(&mut play), play.state.take_seat_changes()), (vec![], vec![]));
    play.finishes(50);
    assert!(play.is_finished());
    assert!(matches!(play.comes(51, 1, retry("host-1", 2)), Seat::Over(_)));
}

#[test]
fn a_host_is_taken_again_after_its_cooldown_and_one_more_failure_begins_another() {
    let mut play = after_two(|policy| policy.host_cooldown = Duration::from_secs(60));
    assert_eq!(play.comes(30, 1, retry("host-1", 2)), Seat::Spare, "DRIVER-64");
    let version = play.state.seats();
    for seconds in (35..=90).step_by(5) {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tick(seconds);
    }
    assert_ne!(play.state.seats(), version, "spares are asked about");
    play.orders();
    starts(&mut play, 90, retry("host-1", 2));
    lines(&mut play);
    loses_host_1(&mut play, 95);
    let [line] = &lines(&mut play)[..] else { panic!("DRIVER-62") };
    assert!(line.contains("host-1 has failed 3 times"), "{line}");
    assert_eq!(
        play.comes(100, 1, SparkTask { instance: 7, id: 2000, number: 2, ..on("host-1", 2) }),
        Seat::Spare,
        "DRIVER-64"
    );
}

#[test]
fn where_spark_has_no_other_host_it_is_taken_when_half_of_the_time_to_gather_is_over() {
    let mut play = after_two(|policy| policy.gang_wait = Duration::from_secs(100));
    play.joins(30, 0);
    assert_eq!(play.comes(30, 1, retry("host-1", 2)), Seat::Spare, "DRIVER-64");
    lines(&mut play);
    let mut taken = None;
    for seconds in 31..90 {
        play.tell(seconds, 0, NodeMessage::Ping);
        play.tick(seconds);
        let said = lines(&mut play);
        if !said.is_empty() {
            assert!(said[0].contains("host-1 is taken though it has failed"), "{said:?}");
            taken = Some(seconds);
            break;
        }
    }
    assert_eq!(taken, Some(78), "DRIVER-65: 50 s after the attempt began");
    assert_eq!(play.comes(79, 1, retry("host-1", 2)), Seat::Inherited, "DRIVER-65");
    play.tell(79, 1, NodeMessage::Join(join(1)));
    play.finishes(80);
    assert!(play.is_finished(), "DRIVER-65");
    assert!(play.state.cooling_hosts(play.at(81), 9, |_| 0.0).is_empty(), "DRIVER-65");
}

#[test]
fn a_gang_that_has_no_other_host_does_not_wait_for_ever_while_looks_say_that_it_queues() {
    let known = after_two(|_| {}).state.take_learned().unwrap();
    let mut play = Play::joining(|policy| {
        of_tasks(policy);
        policy.gang_wait = Duration::from_secs(100);
    });
    play.state.begin_with(known);
    for (partition, job) in [(0, 1), (1, 2)] {
        assert_eq!(play.comes(5, partition, on("host-1", job)), Seat::Spare, "DRIVER-64");
    }
    // They hold both slots, so the seats that are submitted beside them wait.
    for seconds in 6..=60 {
        play.sees(seconds, Some(0), 0);
        play.tick(seconds);
    }
    for (partition, job) in [(0, 1), (1, 2)] {
        assert_eq!(play.comes(61, partition, on("host-1", job)), Seat::Yours, "DRIVER-65");
        play.tell(61, partition, NodeMessage::Join(join(partition)));
    }
    assert!(matches!(play.orders()[..], [(0, HubMessage::Place(_)), (1, HubMessage::Place(_))]), "DRIVER-65");
}

#[test]
fn where_all_hosts_of_a_run_fail_none_is_left_alone() {
    let mut play = after_two(|_| {});
    starts(&mut play, 30, on("host-2", 5));
    lines(&mut play);
    for (seconds, times) in [(40, 1), (60, 2)] {
        play.breaks(seconds, 0);
        play.tick(seconds + 3);
        play.tell(seconds + 3, 1, ended(1, RankState::Stopped, 0));
        play.done(seconds + 3, 1);
        play.orders();
        play.attempt = play.attempt.next();
        let said = lines(&mut play);
        if times == 1 {
            assert_eq!(said, [""; 0]);
            assert!(matches!(play.comes(50, 0, on("host-0", 6)), Seat::Inherited));
            play.tell(50, 0, NodeMessage::Join(join(0)));
            play.tell(50, 1, NodeMessage::Join(join(1)));
            play.orders();
            (0..2).for_each(|rank| play.tell(50, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 }));
        } else {
            assert!(said[0].contains("all 2 hosts of the run have failed"), "DRIVER-65: {said:?}");
        }
    }
    assert_eq!(play.comes(70, 0, on("host-0", 7)), Seat::Inherited, "DRIVER-65");
}

#[test]
fn in_a_barrier_stage_and_without_a_cooldown_no_host_waits() {
    for barrier in [true, false] {
        let mut play = after_two_anyhow(|policy| match barrier {
            true => policy.gang = Gang::Barrier,
            false => policy.host_cooldown = Duration::ZERO,
        });
        assert_eq!(lines(&mut play), [""; 0], "DRIVER-64");
        assert_eq!(play.comes(30, 1, on("host-1", 9)), Seat::Inherited, "DRIVER-64");
        assert_eq!(play.state.take_seat_changes(), []);
    }
}

/// As `after_two`, of a gang that may be a barrier stage.
fn after_two_anyhow(change: impl FnOnce(&mut Policy)) -> Play {
    let mut play = Play::under(|policy| {
        of_tasks(policy);
        change(policy);
    });
    for (seconds, job) in [(10, 2), (25, 3)] {
        loses_host_1(&mut play, seconds);
        if seconds == 10 {
            for partition in 0..2 {
                play.comes(20, partition, on(&format!("host-{partition}"), job));
                play.tell(20, partition, NodeMessage::Join(join(partition)));
            }
            play.orders();
            (0..2).for_each(|rank| play.tell(20, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 }));
        }
    }
    play
}

/// How rank 1, on host-1, ends twice; rank 0 ends like `other` each time. Whether host-1 is left alone.
fn cools_after(how: fn() -> NodeMessage, other: RankState) -> bool {
    let mut play = Play::under(of_tasks);
    for seconds in [10, 20] {
        play.tell(seconds, 1, how());
        play.tell(seconds, 0, ended(0, other.clone(), 0));
        (0..2).for_each(|partition| play.done(seconds, partition));
        play.orders();
        play.attempt = play.attempt.next();
        (0..2).for_each(|partition| play.tell(seconds + 1, partition, NodeMessage::Join(join(partition))));
        play.orders();
        (0..2).for_each(|rank| {
            play.tell(seconds + 1, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
        });
    }
    !play.state.cooling_hosts(play.at(22), 9, |_| 0.0).is_empty()
}

fn raises(kind: RankErrorKind) -> NodeMessage {
    let NodeMessage::RankEnded { mut exit } = ended(1, RankState::Raised, 0) else { panic!() };
    exit.error = Some(RankError { type_name: "OSError".into(), kind, ..RankError::default() });
    NodeMessage::RankEnded { exit }
}

#[test]
fn whose_fault_a_failure_is_follows_from_what_is_known_of_it() {
    let own: [fn() -> NodeMessage; 3] = [
        || ended(1, RankState::OutOfMemory, 0),
        || ended(1, RankState::NotStarted, 0),
        || raises(RankErrorKind::Machine),
    ];
    for how in own {
        assert!(cools_after(how, RankState::Stopped), "DRIVER-63: {:?}", how());
    }
    let not_own: [fn() -> NodeMessage; 6] = [
        || raises(RankErrorKind::TrainingCode),
        || raises(RankErrorKind::PeerLost),
        || raises(RankErrorKind::BlocksLost),
        || raises(RankErrorKind::BeforeStart),
        || ended(1, RankState::Exited(3), 0),
        || ended(1, RankState::Signaled(9), 0),
    ];
    for how in not_own.into_iter().filter(
        |how| !matches!(how(), NodeMessage::RankEnded { exit } if exit.failure() == Some(FailureKind::Start)),
    ) {
        assert!(!cools_after(how, RankState::Stopped), "DRIVER-63: {:?}", how());
    }
    for (how, other) in [(own[0], RankState::OutOfMemory), (own[1], RankState::NotStarted)] {
        assert!(!cools_after(how, other), "DRIVER-63: what all hosts do alike: {:?}", how());
    }
}

#[test]
fn a_host_that_was_announced_to_go_a_task_that_spark_ends_and_a_cancelled_run_are_nobodys_fault() {
    for nth in 0..3 {
        let mut play = Play::under(of_tasks);
        for seconds in [10, 30] {
            match nth {
                0 => {
                    let (now, notice) =
                        (play.at(seconds), Notice { in_ms: Some(90_000), reason: "spot".into() });
                    play.state.notice(now, 0, 1, notice, &mut play.out);
                    play.breaks(seconds, 1);
                    play.tick(seconds + 3);
                }
                1 => {
                    play.tell(seconds, 1, ended(1, RankState::Stopped, 0));
                    let interrupted = Some("its Spark task was killed: by an administrator".to_string());
                    play.tell(seconds, 1, NodeMessage::Done { problem: None, interrupted, output: vec![] });
                }
                _ => {
                    let now = play.at(seconds);
                    play.state.cancel(now, "enough", &mut play.out);
                    play.breaks(seconds, 1);
                    play.tick(seconds + 3);
                }
            }
            play.tell(seconds + 3, 0, ended(0, RankState::Stopped, 0));
            play.done(seconds + 3, 0);
            play.tick(seconds + 6);
            play.orders();
            if play.state.outcome().is_none() {
                play.attempt = play.state.attempt();
                for partition in 0..2 {
                    play.comes(seconds + 7, partition, copy(u32::try_from(seconds).unwrap() + partition));
                    play.tell(seconds + 7, partition, NodeMessage::Join(join(partition)));
                }
                play.orders();
                (0..2).for_each(|rank| {
                    play.tell(seconds + 8, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
                });
            }
        }
        let cooling = play.state.cooling_hosts(play.at(40), 9, |_| 0.0);
        assert!(cooling.is_empty(), "DRIVER-63: {nth}: {cooling:?}");
        assert!(nth == 2 || play.state.attempt().restarts() == 2, "{nth}: {:?}", play.state.outcome());
    }
}

#[test]
fn what_is_known_of_hosts_goes_on_to_the_next_run() {
    let mut play = after_two(|_| {});
    let known = play.state.take_learned().expect("DRIVER-66");
    assert!(play.state.take_learned().is_none(), "DRIVER-66: once");
    let mut next = Play::joining(of_tasks);
    next.state.begin_with(known.clone());
    assert_eq!(next.comes(1, 1, retry("host-1", 2)), Seat::Spare, "DRIVER-66");
    let [line] = &lines(&mut next)[..] else { panic!("DRIVER-66: the caller of this run is told, too") };
    assert!(line.contains("host-1 has failed twice"), "{line}");
    let mut of_barrier = Play::joining(|policy| policy.max_restarts = 1);
    of_barrier.state.begin_with(known);
    assert_eq!(of_barrier.comes(1, 1, retry("host-1", 2)), Seat::Yours, "DRIVER-64");
}
