//! Hosts that are to go: what their ranks, the others and the caller are told, and what follows.
#![allow(clippy::unwrap_used, reason = "for tests")]

#[path = "common/play.rs"]
mod play;

use std::time::Duration;

use phalanx_job::driver::state::SeatChange;
use phalanx_rendezvous::Seat;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{FailureKind, Gang, Notice, Policy, RankError, RankErrorKind, RankNotice, RankState};
use play::{GRACE, Play, ended, on};

/// The time at which all plays begin, in milliseconds since 1970.
const UNIX_MS: u64 = 1_000_000;

impl Play {
    /// The node of a partition says that its host goes in so many seconds.
    fn announces(&mut self, seconds: u64, partition: u32, in_s: Option<u64>) {
        let notice = Notice { in_ms: in_s.map(|s| s * 1000), reason: "spot".into() };
        self.state.notice(self.at(seconds), UNIX_MS + seconds * 1000, partition, notice, &mut self.out);
    }

    /// The number of the order to freeze that both nodes have.
    fn is_choosing(&mut self) -> u32 {
        match self.orders()[..] {
            [(0, HubMessage::Freeze { number }), (1, HubMessage::Freeze { number: other })]
                if number == other =>
            {
                number
            }
            ref others => panic!("{others:?}"),
        }
    }

    fn frozen(&mut self, seconds: u64, number: u32, asked: [Option<u64>; 2]) {
        for (partition, asked) in (0..).zip(asked) {
            self.tell(seconds, partition, NodeMessage::Frozen { number, asked });
        }
    }

    /// What both nodes are to tell their ranks.
    fn is_told(&mut self) -> RankNotice {
        match &self.orders()[..] {
            [(0, HubMessage::Notice(notice)), (1, HubMessage::Notice(other))] if notice == other => {
                (**notice).clone()
            }
            others => panic!("{others:?}"),
        }
    }

    /// A rank leaves its work, and its node is done.
    fn leaves(&mut self, seconds: u64, rank: u32) {
        self.tell(seconds, rank, left(rank));
        self.done(seconds, rank);
    }

    /// How the next attempt begins: whether in place.
    fn restarts(&mut self) -> Vec<bool> {
        self.state.take_restarts().iter().map(|restart| restart.in_place).collect()
    }

    fn stopped(&mut self) -> Vec<u32> {
        let orders = self.orders().into_iter();
        orders.filter(|(_, order)| matches!(order, HubMessage::Stop { .. })).map(|(node, _)| node).collect()
    }
}

/// A play in which nobody is lost by silence.
fn quiet() -> Play {
    Play::under(|policy| policy.node_timeout = Duration::from_secs(3600))
}

fn left(rank: u32) -> NodeMessage {
    let NodeMessage::RankEnded { mut exit } = ended(rank, RankState::Raised, 0) else { panic!() };
    let kind = RankErrorKind::Preempted;
    let error = RankError {
        type_name: "Preempted".into(),
        message: "left at step 8".into(),
        kind,
        ..RankError::default()
    };
    exit.error = Some(error);
    NodeMessage::RankEnded { exit }
}

#[test]
fn all_ranks_are_told_from_the_step_after_the_last_that_one_has_asked_for() {
    let mut play = Play::placed();
    play.announces(2, 1, Some(120));
    let number = play.is_choosing();
    play.tell(2, 0, NodeMessage::Frozen { number, asked: Some(7) });
    assert!(play.orders().is_empty(), "DRIVER-53: not before all have answered");
    play.tell(2, 1, NodeMessage::Frozen { number, asked: Some(5) });
    let told = play.is_told();
    assert_eq!((told.step, told.ranks, told.hosts), (8, vec![1], vec!["host-1".to_string()]), "DRIVER-53");
    assert_eq!((told.deadline_ms, told.reason.as_str()), (Some(UNIX_MS + 122_000), "spot"));
    let lines = play.state.take_notices();
    assert_eq!(lines, ["[phalanx] host-1 is to go in 120 s: spot"]);
    play.announces(3, 1, Some(119));
    assert!(play.orders().is_empty() && play.state.take_notices().is_empty(), "told again it is no news");
    (0..2).for_each(|node| play.tell(3, node, NodeMessage::Noticed { number, late: false }));
    play.announces(4, 0, None);
    let number = play.is_choosing();
    play.frozen(4, number, [Some(9), None]);
    let told = play.is_told();
    assert_eq!((told.step, told.ranks, told.hosts.len()), (10, vec![0, 1], 2), "all that is known");
    assert_eq!(told.deadline_ms, Some(UNIX_MS + 122_000), "the first that goes");
}

#[test]
fn the_step_is_also_above_those_of_ranks_that_have_ended() {
    let mut play = Play::placed();
    let NodeMessage::RankEnded { mut exit } = ended(0, RankState::Finished, 0) else { panic!() };
    exit.asked = Some(99);
    play.tell(2, 0, NodeMessage::RankEnded { exit });
    play.done(2, 0);
    play.orders();
    play.announces(3, 1, None);
    let orders = play.orders();
    let [(1, HubMessage::Freeze { number })] = orders[..] else { panic!("{orders:?}") };
    play.tell(3, 1, NodeMessage::Frozen { number, asked: Some(5) });
    let orders = play.orders();
    let [(1, HubMessage::Notice(told))] = &orders[..] else { panic!("{orders:?}") };
    assert_eq!(told.step, 100, "DRIVER-53");
}

#[test]
fn ranks_do_not_wait_for_a_node_that_does_not_answer() {
    let mut play = Play::placed();
    play.announces(2, 1, None);
    let first = play.is_choosing();
    play.tell(2, 0, NodeMessage::Frozen { number: first, asked: Some(7) });
    play.tick(3);
    assert!(
        matches!(play.orders()[..], [(0, HubMessage::Thaw { .. }), (1, HubMessage::Thaw { .. })]),
        "DRIVER-54"
    );
    play.tell(3, 1, NodeMessage::Frozen { number: first, asked: Some(11) });
    assert!(play.orders().is_empty(), "DRIVER-54: too late");
    play.tick(4);
    let second = play.is_choosing();
    play.frozen(4, second, [Some(8), Some(9)]);
    assert_eq!(play.is_told().step, 12, "DRIVER-53: what came too late counts");
    play.tell(5, 0, NodeMessage::Noticed { number: second, late: false });
    play.tell(5, 0, NodeMessage::Ping);
    play.tell(5, 1, NodeMessage::Ping);
    let orders = play.orders();
    let [
        (0, HubMessage::Pong),
        (0, HubMessage::Thaw { .. }),
        (1, HubMessage::Pong),
        (1, HubMessage::Notice(_)),
    ] = &orders[..]
    else {
        panic!("an order may have gone with a connection: {orders:?}")
    };
}

#[test]
fn a_notice_before_ranks_run_is_told_when_they_do() {
    let mut play = Play::joining(|_| {});
    play.joins(0, 0);
    play.announces(1, 0, None);
    play.joins(2, 1);
    play.orders();
    play.tell(3, 0, NodeMessage::RankStarted { rank: 0, pid: 1, age_us: 0 });
    assert!(play.orders().is_empty(), "NODE-61: a rank of the other node would be left out");
    play.tell(4, 1, NodeMessage::RankStarted { rank: 1, pid: 1, age_us: 0 });
    let number = play.is_choosing();
    play.frozen(4, number, [None, None]);
    assert_eq!(play.is_told().step, 0, "none has asked yet");
}

#[test]
fn who_leaves_has_the_others_finish_and_all_start_again_elsewhere_without_a_restart() {
    let mut play = quiet();
    play.announces(2, 1, Some(120));
    let number = play.is_choosing();
    play.frozen(2, number, [Some(7), Some(7)]);
    play.is_told();
    play.leaves(3, 1);
    play.tick(60);
    assert_eq!(play.stopped(), [0; 0], "DRIVER-56: it may be saving");
    play.leaves(61, 0);
    assert_eq!(play.restarts(), [false], "DRIVER-31, DRIVER-57: the run has no restarts");
    assert!(play.state.outcome().is_none());
    play.orders();
    play.attempt = play.state.attempt();
    play.starts(70);
    assert!(play.orders().is_empty(), "ranks are not told twice of what they have left for");
    play.finishes(80);
    assert!(play.is_finished());
}

#[test]
fn ranks_that_miss_who_has_left_do_not_hide_that_it_was_preempted() {
    let mut play = Play::placed();
    play.leaves(3, 1);
    play.tell(4, 0, play::missed_a_peer(0));
    play.done(4, 0);
    let restarts = play.state.take_restarts();
    assert_eq!(restarts.len(), 1, "DRIVER-57: nobody announced anything, and a rank left by itself");
    assert!(restarts[0].line.starts_with("[phalanx] preempted, restart 1: rank 1"), "{}", restarts[0].line);
}

#[test]
fn ranks_that_do_not_react_are_ended_so_that_they_have_their_grace() {
    let mut play = quiet();
    play.announces(2, 1, Some(120));
    let number = play.is_choosing();
    play.frozen(2, number, [Some(7), None]);
    play.is_told();
    let due = 2 + 120 - GRACE.as_secs();
    play.tick(due - 1);
    assert_eq!(play.stopped(), [0; 0], "DRIVER-55");
    play.tick(due);
    assert_eq!(play.stopped(), [0, 1], "DRIVER-55");
    (0..2).for_each(|rank| play.ends(due + 1, rank, RankState::Stopped));
    assert_eq!(play.restarts(), [false], "DRIVER-57");
}

#[test]
fn code_that_never_asks_goes_on_until_the_host_goes_and_is_not_started_again() {
    let mut play = quiet();
    play.announces(2, 1, Some(120));
    let number = play.is_choosing();
    play.frozen(2, number, [None, None]);
    play.is_told();
    play.tick(200);
    assert_eq!(play.stopped(), [0; 0], "DRIVER-55: the host may have stayed");
    play.breaks(170, 1);
    play.tick(173);
    play.tell(173, 0, ended(0, RankState::Stopped, 0));
    play.done(173, 0);
    assert!(play.restarts().is_empty(), "DRIVER-57: it may not be able to go on");
    let failure = play.failure();
    assert_eq!((failure.kind, failure.host.as_str()), (FailureKind::Preempted, "host-1"));
    assert!(failure.message.ends_with("host-1 was to go: spot"), "{}", failure.message);
}

#[test]
fn an_executor_that_ends_its_task_as_its_host_goes_is_what_was_announced() {
    let mut play = Play::under(|policy| policy.max_restarts = 1);
    play.announces(2, 1, None);
    let number = play.is_choosing();
    play.frozen(2, number, [None, None]);
    play.is_told();
    play.tell(3, 1, ended(1, RankState::Stopped, 0));
    let interrupted = Some("its executor is shutting down".to_string());
    play.tell(3, 1, NodeMessage::Done { problem: None, interrupted, output: vec![] });
    play.tell(3, 0, ended(0, RankState::Stopped, 0));
    play.done(3, 0);
    let now = play.at(4);
    let said = "the Spark stage failed: ExecutorLostFailure (executor 1 exited)".to_string();
    play.state.stage_ended(now, play.attempt, Some(said), &mut play.out);
    let restarts = play.state.take_restarts();
    assert!(restarts[0].line.contains("preempted, restart 1"), "DRIVER-57: {restarts:?}");
}

#[test]
fn a_rank_that_fails_by_itself_while_others_have_left_is_the_cause_and_ends_them() {
    let mut play = quiet();
    play.leaves(3, 1);
    assert_eq!(play.stopped(), [0; 0]);
    let NodeMessage::RankEnded { mut exit } = ended(0, RankState::Raised, 0) else { panic!() };
    exit.error =
        Some(RankError { type_name: "OSError".into(), message: "no space".into(), ..RankError::default() });
    play.tell(4, 0, NodeMessage::RankEnded { exit });
    play.done(4, 0);
    let failure = play.failure();
    assert_eq!(
        (failure.kind, failure.rank),
        (FailureKind::Exception, Some(0)),
        "DRIVER-56: its save has failed"
    );
}

#[test]
fn in_a_gang_of_tasks_all_are_called_or_submitted_again() {
    for announced in [true, false] {
        let mut play = Play::under(|policy| policy.gang = Gang::Tasks);
        if announced {
            play.announces(2, 1, None);
            let number = play.is_choosing();
            play.frozen(2, number, [Some(1), Some(1)]);
        }
        play.leaves(3, 1);
        play.leaves(4, 0);
        assert_eq!(play.restarts(), [!announced], "DRIVER-31");
        play.orders();
        play.attempt = play.state.attempt();
        play.starts(5);
    }
}

#[test]
fn a_host_on_which_no_rank_runs_any_more_is_no_news_for_the_others() {
    let mut play = quiet();
    play.announces(2, 1, None);
    let number = play.is_choosing();
    play.tell(2, 1, ended(1, RankState::Finished, 0));
    play.frozen(2, number, [Some(1), None]);
    let thawed =
        |orders: &[(u32, HubMessage)]| orders.iter().all(|(_, of)| matches!(of, HubMessage::Thaw { .. }));
    let orders = play.orders();
    assert!(orders.len() == 2 && thawed(&orders), "{orders:?}");
    play.tick(10);
    assert!(play.orders().is_empty());
}

#[test]
fn others_are_ended_two_minutes_after_the_first_has_left_where_nobody_knows_when_the_host_goes() {
    let mut play = quiet();
    play.leaves(3, 1);
    play.tick(122);
    assert_eq!(play.stopped(), [0; 0], "DRIVER-56");
    play.tick(123);
    assert_eq!(play.stopped(), [0], "DRIVER-56");
    play.ends(124, 0, RankState::Stopped);
    assert_eq!(play.restarts().len(), 1);
}

#[test]
fn a_host_that_went_as_announced_costs_no_restart() {
    for announced in [true, false] {
        let mut play = Play::under(|policy| policy.max_restarts = 1);
        if announced {
            play.announces(2, 1, Some(10));
            let number = play.is_choosing();
            play.frozen(2, number, [None, None]);
        }
        play.breaks(3, 1);
        play.tick(6);
        play.tell(6, 0, ended(0, RankState::Stopped, 0));
        play.done(6, 0);
        let restarts = play.state.take_restarts();
        let line = &restarts[0].line;
        assert_eq!(line.contains("preempted, restart 1"), announced, "DRIVER-57: {line}");
        assert_eq!(line.contains("restart 1 of 1"), !announced, "{line}");
        assert_eq!(line.contains("host-1 was to go: spot"), announced, "{line}");
    }
}

#[test]
fn a_host_that_has_gone_once_is_no_excuse_for_later_losses() {
    let mut play = quiet();
    play.announces(2, 1, None);
    let number = play.is_choosing();
    play.frozen(2, number, [Some(1), None]);
    for nth in [1, 2] {
        let at = 10 * nth;
        play.breaks(at, 1);
        play.tick(at + 3);
        play.tell(at + 3, 0, ended(0, RankState::Stopped, 0));
        play.done(at + 3, 0);
        let restarts = play.state.take_restarts();
        assert_eq!(restarts.len(), usize::from(nth == 1), "DRIVER-57: {restarts:?}");
        if nth == 1 {
            assert!(restarts[0].line.contains("preempted, restart 1"), "{}", restarts[0].line);
            play.orders();
            play.attempt = play.state.attempt();
            play.starts(at + 4);
        }
    }
    assert_eq!(play.failure().kind, FailureKind::LostNode, "DRIVER-57");
}

#[test]
fn a_node_that_missed_a_notice_hears_of_it_before_the_next() {
    let mut play = quiet();
    play.announces(2, 1, None);
    let first = play.is_choosing();
    play.frozen(2, first, [Some(7), Some(7)]);
    play.is_told();
    play.tell(2, 0, NodeMessage::Noticed { number: first, late: false });
    play.announces(3, 0, None);
    let second = play.is_choosing();
    play.frozen(3, second, [Some(9), Some(9)]);
    let orders = play.orders();
    let steps = |node: u32| -> Vec<u64> {
        let of_node = orders.iter().filter(|(partition, _)| *partition == node);
        of_node
            .filter_map(
                |(_, order)| if let HubMessage::Notice(told) = order { Some(told.step) } else { None },
            )
            .collect()
    };
    assert_eq!(
        (steps(0), steps(1)),
        (vec![10], vec![8, 10]),
        "DRIVER-53: an order may have gone with a connection"
    );
}

#[test]
fn as_often_as_the_budget_says_and_no_oftener() {
    let mut play = Play::under(|policy: &mut Policy| policy.max_preemptions = Some(1));
    for attempt in 0..2 {
        (0..2).for_each(|rank| play.leaves(10 * (attempt + 1), rank));
        play.orders();
        if attempt == 0 {
            assert_eq!(play.restarts().len(), 1, "DRIVER-57");
            play.attempt = play.state.attempt();
            play.starts(15);
        }
    }
    let failure = play.failure();
    assert_eq!((failure.kind, failure.restarts), (FailureKind::Preempted, 1), "DRIVER-57");
    assert_eq!(failure.message.lines().next().unwrap(), "rank 0 (host-0) raised Preempted: left at step 8");
}

#[test]
fn ranks_that_were_told_too_late_start_again_together() {
    let mut play = Play::placed();
    play.announces(2, 1, None);
    let number = play.is_choosing();
    play.frozen(2, number, [Some(7), Some(7)]);
    play.is_told();
    play.tell(3, 1, NodeMessage::Noticed { number, late: true });
    assert_eq!(play.stopped(), [0, 1], "DRIVER-58");
    (0..2).for_each(|rank| play.ends(4, rank, RankState::Stopped));
    assert_eq!(play.restarts(), [false], "DRIVER-58");
}

#[test]
fn a_cancel_counts_more_than_a_notice() {
    for begun in ["a rank has left", "the ranks were too slow", "nothing"] {
        let mut play = quiet();
        play.announces(2, 1, Some(120));
        let number = play.is_choosing();
        play.frozen(2, number, [Some(7), None]);
        play.is_told();
        match begun {
            "a rank has left" => play.leaves(3, 1),
            "the ranks were too slow" => play.tick(2 + 120 - GRACE.as_secs()),
            _ => {}
        }
        let now = play.at(120);
        play.state.cancel(now, "enough", &mut play.out);
        (0..2).for_each(|rank| play.ends(121, rank, RankState::Stopped));
        assert_eq!(play.failure().kind, FailureKind::Cancelled, "{begun}: {:?}", play.failure());
        assert!(play.restarts().is_empty(), "{begun}");
    }
}

/// host-1 goes in so many seconds, as a platform has said; both ranks have left their work, and new tasks come.
fn has_left(in_s: Option<u64>, change: impl FnOnce(&mut Policy)) -> Play {
    let mut play = Play::under(|policy| {
        (policy.gang, policy.node_timeout) = (Gang::Tasks, Duration::from_secs(3600));
        change(policy);
    });
    play.announces(2, 1, in_s);
    let number = play.is_choosing();
    play.frozen(2, number, [Some(1), Some(1)]);
    play.leaves(3, 1);
    play.leaves(4, 0);
    assert_eq!(play.restarts(), [false]);
    play.orders();
    play.state.take_notices();
    play.attempt = play.state.attempt();
    play
}

#[test]
fn a_run_that_is_preempted_goes_on_where_no_host_is_to_go() {
    let mut play = has_left(Some(120), |_| {});
    assert_ne!(play.comes(10, 0, on("host-0", 2)), Seat::Spare);
    assert_eq!(play.comes(10, 1, on("host-1", 2)), Seat::Spare, "DRIVER-72");
    let wanted = SeatChange::Wanted { attempt: play.attempt, partition: 1 };
    assert_eq!(play.state.take_seat_changes(), [wanted], "DRIVER-72");
    let told = play.state.take_notices().join("\n");
    assert!(told.starts_with("[phalanx] host-1 is to go (spot). Its new tasks wait "), "{told}");
    assert_ne!(play.comes(20, 1, on("host-2", 3)), Seat::Spare);
}

#[test]
fn a_host_that_is_to_go_is_taken_where_nothing_better_comes_or_it_has_stayed() {
    let mut play = has_left(Some(3600), |_| {});
    assert_eq!(play.comes(10, 1, on("host-1", 2)), Seat::Spare, "DRIVER-72");
    play.tick(310);
    assert_ne!(play.comes(311, 1, on("host-1", 2)), Seat::Spare, "DRIVER-65");
    let told = play.state.take_notices().join("\n");
    assert!(told.contains("host-1 is taken though it is to go"), "{told}");
    let mut play = has_left(Some(60), |_| {});
    assert_eq!(play.comes(10, 1, on("host-1", 2)), Seat::Spare, "DRIVER-72");
    let seats = play.state.seats();
    play.tick(123);
    assert_ne!(play.state.seats(), seats, "who waits aside asks again");
    assert_ne!(play.comes(123, 1, on("host-1", 2)), Seat::Spare, "DRIVER-72: it has stayed");
}

#[test]
fn a_host_that_is_to_go_is_taken_at_once_where_nobody_knows_when() {
    let mut play = has_left(None, |_| {});
    assert_ne!(play.comes(10, 1, on("host-1", 2)), Seat::Spare, "DRIVER-72: at a known time");
    let mut play = has_left(Some(120), |policy| policy.host_cooldown = Duration::ZERO);
    assert_ne!(play.comes(10, 1, on("host-1", 2)), Seat::Spare, "DRIVER-72: by the same setting");
}
