//! A job's state by itself, played with facts and time.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

use std::time::{Duration, Instant};

use phalanx_job::driver::state::{JobOutcome, JobState, StageLook};
use phalanx_rendezvous::{Outbox, Seat};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{
    Attempt, Failure, Job, Join, Policy, RankError, RankErrorKind, RankExit, RankState, SparkTask,
    host_digest,
};

/// Of all jobs that are played.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

pub(crate) struct Play {
    pub(crate) state: JobState,
    pub(crate) out: Outbox,
    pub(crate) began: Instant,
    /// The attempt whose nodes speak.
    pub(crate) attempt: Attempt,
}

impl Play {
    /// Two tasks of a rank each, placed.
    pub(crate) fn placed() -> Play {
        Play::with_restarts(0)
    }

    pub(crate) fn with_restarts(max_restarts: u32) -> Play {
        Play::under(|policy| policy.max_restarts = max_restarts)
    }

    pub(crate) fn under(change: impl FnOnce(&mut Policy)) -> Play {
        let mut play = Play::joining(change);
        play.starts(0);
        play
    }

    /// Two tasks of a rank each, of which nothing was heard yet.
    pub(crate) fn joining(change: impl FnOnce(&mut Policy)) -> Play {
        let mut job = Job::new("state", "t", 2, 2).unwrap();
        job.policy.grace = GRACE;
        change(&mut job.policy);
        Play::of(job)
    }

    /// The same with data sets.
    pub(crate) fn with_data(max_restarts: u32) -> Play {
        let mut job = Job::new("state", "t", 2, 2).unwrap();
        job.policy.grace = GRACE;
        job.policy.max_restarts = max_restarts;
        job.data_folder = "phalanx-data-1".into();
        let mut play = Play::of(job);
        play.starts(0);
        play
    }

    pub(crate) fn of(job: Job) -> Play {
        let began = Instant::now();
        Play { state: JobState::new(job, began), out: Outbox::default(), began, attempt: Attempt::first() }
    }

    pub(crate) fn hanging(seconds: u64) -> Play {
        Play::under(|policy| policy.hang_timeout = Duration::from_secs(seconds))
    }

    /// Both nodes join the present attempt and start their ranks.
    pub(crate) fn starts(&mut self, seconds: u64) {
        for partition in 0..2 {
            self.joins(seconds, partition);
        }
        assert!(matches!(self.orders()[..], [(0, HubMessage::Place(_)), (1, HubMessage::Place(_))]));
        for rank in 0..2 {
            self.tell(seconds + 1, rank, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
        }
    }

    /// Rank 1 ends like this, rank 0 is stopped, and both nodes are done.
    pub(crate) fn fails(&mut self, seconds: u64, state: RankState) {
        self.ends(seconds, 1, state);
        self.tell(seconds, 0, ended(0, RankState::Stopped, 0));
        self.orders();
        self.done(seconds, 0);
    }

    pub(crate) fn finishes(&mut self, seconds: u64) {
        (0..2).for_each(|rank| self.ends(seconds, rank, RankState::Finished));
    }

    pub(crate) fn is_finished(&self) -> bool {
        matches!(self.state.outcome(), Some(JobOutcome::Finished(_)))
    }

    pub(crate) fn at(&self, seconds: u64) -> Instant {
        self.began + Duration::from_secs(seconds)
    }

    pub(crate) fn tell(&mut self, seconds: u64, partition: u32, message: NodeMessage) {
        let now = self.at(seconds);
        self.state.message(now, partition, self.attempt, message, &mut self.out);
    }

    pub(crate) fn joins(&mut self, seconds: u64, partition: u32) {
        assert_ne!(self.comes(seconds, partition, task(1)), Seat::Spare);
        self.tell(seconds, partition, NodeMessage::Join(join(partition)));
    }

    /// A task connects.
    pub(crate) fn comes(&mut self, seconds: u64, partition: u32, task: SparkTask) -> Seat {
        let now = self.at(seconds);
        self.state.seat(now, partition, task, &mut self.out)
    }

    /// A look at Spark shows how many of the stage's two tasks run, and how many of two slots are free.
    pub(crate) fn sees(&mut self, seconds: u64, running: Option<u32>, free: u32) {
        let (now, look) = (self.at(seconds), StageLook { running, slots: 2, free });
        self.state.stage_seen(now, self.attempt, look);
    }

    /// The connection of a node breaks.
    pub(crate) fn breaks(&mut self, seconds: u64, partition: u32) {
        let now = self.at(seconds);
        self.state.disconnected(now, partition);
    }

    pub(crate) fn tick(&mut self, seconds: u64) {
        let now = self.at(seconds);
        self.state.tick(now, &mut self.out);
    }

    pub(crate) fn orders(&mut self) -> Vec<(u32, HubMessage)> {
        self.out.take()
    }

    pub(crate) fn done(&mut self, seconds: u64, partition: u32) {
        self.tell(seconds, partition, NodeMessage::Done { problem: None, interrupted: None, output: vec![] });
    }

    /// A rank ends, and its node is done.
    pub(crate) fn ends(&mut self, seconds: u64, rank: u32, state: RankState) {
        self.tell(seconds, rank, ended(rank, state, 0));
        self.done(seconds, rank);
    }

    pub(crate) fn failure(&self) -> &Failure {
        match self.state.outcome() {
            Some(JobOutcome::Failed(failure)) => failure,
            other => panic!("a failure was expected, not {other:?}"),
        }
    }
}

/// The first task of a stage of this number.
pub(crate) fn task(stage: u32) -> SparkTask {
    SparkTask { instance: stage.into(), stage, id: stage.into(), ..SparkTask::default() }
}

/// The task of a Spark job of this number, on a host.
pub(crate) fn on(host: &str, job: u32) -> SparkTask {
    SparkTask { host: host_digest(host), ..task(job) }
}

/// A task that Spark starts while the first is there, as it thinks or not.
pub(crate) fn copy(nth: u32) -> SparkTask {
    SparkTask { instance: 100 + u64::from(nth), id: 100 + u64::from(nth), number: nth, ..task(1) }
}

pub(crate) fn join(partition: u32) -> Join {
    Join {
        partition,
        name: format!("host-{partition}"),
        host: format!("host-{partition}"),
        address: [127, 0, 0, 1].into(),
        interface: String::new(),
        addresses: vec![],
        store_port: 1,
        store_key: Vec::new(),
        gpus: vec![],
        folder: String::new(),
    }
}

/// A rank that ended `ago_ms` before it is told.
pub(crate) fn ended(rank: u32, state: RankState, ago_ms: i64) -> NodeMessage {
    let exit = RankExit { at_us: -ago_ms * 1000, ..RankExit::new(rank, format!("host-{rank}"), state) };
    NodeMessage::RankEnded { exit: Box::new(exit) }
}

/// A rank that raised since a peer went away.
pub(crate) fn missed_a_peer(rank: u32) -> NodeMessage {
    let NodeMessage::RankEnded { mut exit } = ended(rank, RankState::Raised, 0) else { panic!() };
    let kind = RankErrorKind::PeerLost;
    exit.error = Some(RankError { type_name: "RuntimeError".into(), kind, ..RankError::default() });
    NodeMessage::RankEnded { exit }
}
