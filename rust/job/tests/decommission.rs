//! Executors that Spark decommissions: their tasks go, and others of the same host don't.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use std::time::Duration;

use phalanx_rendezvous::Seat;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::placement::Join;
use phalanx_types::{
    FailureKind, Gang, Job, Policy, RankError, RankErrorKind, RankNotice, RankState, SparkTask, host_digest,
};
use play::{Play, ended, join};

const HOST: &str = "shared";

/// Spark's task of this attempt id, whose executor is on the one host.
fn task(id: u64) -> SparkTask {
    let stage = u32::try_from(id).unwrap();
    SparkTask { id, instance: id, stage, host: host_digest(HOST), ..SparkTask::default() }
}

fn elastic(policy: &mut Policy) {
    policy.gang = Gang::Tasks;
    policy.elastic.min_ranks = 1;
    policy.elastic.cooldown = Duration::ZERO;
}

impl Play {
    fn has(&mut self, seconds: u64, partition: u32, id: u64) {
        assert_ne!(self.comes(seconds, partition, task(id)), Seat::Spare);
        self.tell(seconds, partition, NodeMessage::Join(Join { host: HOST.into(), ..join(partition) }));
    }

    /// Tasks 10 and 11 run ranks 0 and 1.
    fn of_one_host(change: impl FnOnce(&mut Policy)) -> Play {
        let mut play = Play::joining(|policy| {
            elastic(policy);
            change(policy);
        });
        (0..2).for_each(|partition| play.has(0, partition, 10 + u64::from(partition)));
        for rank in 0..2 {
            play.tell(1, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
        }
        play.orders();
        play
    }

    fn decommissioned(&mut self, seconds: u64, tasks: &[u64]) {
        let now = self.at(seconds);
        self.state.decommissioned(now, tasks, &mut self.out);
    }

    /// What the ranks are told once both nodes have answered.
    fn is_told(&mut self, seconds: u64) -> RankNotice {
        let orders = self.orders();
        let [(0, HubMessage::Freeze { number }), (1, _)] = orders[..] else { panic!("{orders:?}") };
        (0..2).for_each(|node| self.tell(seconds, node, NodeMessage::Frozen { number, asked: Some(7) }));
        let orders = self.orders();
        let [(0, HubMessage::Notice(notice)), _] = &orders[..] else { panic!("{orders:?}") };
        (**notice).clone()
    }

    fn leave(&mut self, seconds: u64) {
        for rank in 0..2 {
            let NodeMessage::RankEnded { mut exit } = ended(rank, RankState::Raised, 0) else { panic!() };
            exit.error = Some(RankError { kind: RankErrorKind::Preempted, ..RankError::default() });
            self.tell(seconds, rank, NodeMessage::RankEnded { exit });
            self.done(seconds, rank);
        }
        let restarts = self.state.take_restarts();
        assert!(restarts[0].line.starts_with("[phalanx] preempted, restart 1: "), "{restarts:?}");
        self.attempt = restarts[0].attempt;
    }
}

#[test]
fn ranks_learn_that_those_of_one_executor_go_and_the_caller_once_for_all_of_its_tasks() {
    let mut play = Play::of_one_host(|_| {});
    play.decommissioned(2, &[11, 77]);
    let told = play.is_told(2);
    assert_eq!((told.hosts, told.ranks), (vec![HOST.to_string()], vec![1]), "DRIVER-73");
    let line = "[phalanx] an executor on shared is to go: decommissioned by Spark";
    assert_eq!(play.state.take_notices(), [line]);
    play.decommissioned(4, &[11]);
    assert_eq!((play.orders(), play.state.take_notices()), (vec![], vec![]), "told again it is no news");

    let mut both = Play::of_one_host(|_| {});
    both.decommissioned(2, &[10, 11]);
    assert_eq!(both.is_told(2).ranks, [0, 1], "DRIVER-73");
    assert_eq!(both.state.take_notices(), [line]);
    assert_eq!(both.state.going_hosts(9).len(), 1);
}

#[test]
fn executors_of_several_hosts_are_shown_in_a_line_for_each_host() {
    let mut job = Job::new("state", "t", 4, 4).unwrap();
    elastic(&mut job.policy);
    let mut play = Play::of(job);
    for partition in 0..4 {
        play.comes(0, partition, task(10 + u64::from(partition)));
        let host = format!("host-{}", partition % 2);
        play.tell(0, partition, NodeMessage::Join(Join { host, ..join(partition) }));
    }
    play.decommissioned(2, &[10, 11, 12, 13]);
    let shown: Vec<String> = play.state.going_hosts(9).into_iter().map(|line| line.host).collect();
    assert_eq!(shown, ["an executor on host-0", "an executor on host-1"], "DRIVER-73");
}

#[test]
fn an_elastic_job_goes_on_at_once_on_the_other_executor_of_the_host_and_takes_one_that_comes() {
    let mut play = Play::of_one_host(|_| {});
    play.decommissioned(2, &[11]);
    play.is_told(2);
    play.leave(3);
    let orders = play.orders();
    let is_told =
        |node, is: fn(&HubMessage) -> bool| orders.iter().any(|(to, order)| *to == node && is(order));
    assert!(is_told(0, |order| matches!(order, HubMessage::Again { .. })), "DRIVER-73: {orders:?}");
    assert!(is_told(1, |order| matches!(order, HubMessage::GivenUp { .. })), "DRIVER-73: {orders:?}");
    assert_eq!(play.state.going_hosts(9), [], "it is none of the job's any more");
    play.tell(4, 0, NodeMessage::Join(Join { host: HOST.into(), ..join(0) }));
    play.tick(6);
    let orders = play.orders();
    assert!(orders.iter().any(|(to, order)| *to == 0 && matches!(order, HubMessage::Place(_))), "{orders:?}");
    play.tell(7, 0, NodeMessage::RankStarted { rank: 0, pid: 1, age_us: 0 });
    play.has(8, 1, 12);
    play.orders();
    play.tell(9, 0, NodeMessage::Saved { step: 40 });
    let orders = play.orders();
    assert!(
        orders.iter().any(|(_, order)| matches!(order, HubMessage::Stop { .. })),
        "DRIVER-73: {orders:?}"
    );
}

#[test]
fn an_executor_that_is_lost_beside_one_that_is_to_go_is_a_lost_node() {
    for (lost, kind) in [(0, FailureKind::LostNode), (1, FailureKind::Preempted)] {
        // No restart of either kind is left.
        let mut play = Play::of_one_host(|policy| {
            policy.elastic.min_ranks = 2;
            policy.max_preemptions = Some(0);
        });
        play.decommissioned(2, &[11]);
        play.is_told(2);
        play.breaks(3, lost);
        let mut seconds = 3;
        while play.state.outcome().is_none() {
            seconds += 1;
            assert!(seconds < 600, "{lost} is not missed");
            play.tick(seconds);
            play.tell(seconds, 1 - lost, NodeMessage::Ping);
            if play.orders().iter().any(|(_, order)| matches!(order, HubMessage::Stop { .. })) {
                play.tell(seconds, 1 - lost, ended(1 - lost, RankState::Stopped, 0));
                play.done(seconds, 1 - lost);
            }
        }
        assert_eq!(play.failure().kind, kind, "DRIVER-73: {}", play.failure().message);
    }
}
