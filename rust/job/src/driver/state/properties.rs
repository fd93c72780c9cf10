//! What always holds of a job's state. Random events, also from nodes that lie, come in random order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_rendezvous::{Outbox, Seat};
use phalanx_types::message::{HubMessage, NodeMessage, RankActivity, TimedReport};
use phalanx_types::stacks::RankStacks;
use phalanx_types::{
    Attempt, Gang, Generation, Job, Join, NodePlacement, Notice, RankError, RankErrorKind, RankExit,
    RankState, SparkTask, host_digest,
};
use proptest::prelude::*;

use super::job_state::JobState;
use super::joining::StageLook;
use super::news::SeatChange;
use super::node::Node;
use super::phase::{JobOutcome, JobPhase};

const TASKS: u32 = 3;
const RANKS: u32 = 6;

#[derive(Debug, Clone)]
enum Event {
    /// Of a partition, this many attempts ago.
    Message(u32, u32, NodeMessage),
    /// What a whole node tells that goes through an attempt as it should.
    Goes(u32, RankState),
    AllJoin,
    Disconnected(u32),
    Comes(u32, SparkTask),
    StageEnded(Option<String>),
    Seen(StageLook),
    Cancelled,
    ResultLost(u32),
    AskedForStacks,
    /// The host of a partition is to go, in so many milliseconds.
    Announced(u32, Option<u64>),
    /// Spark decommissions the executors of these tasks.
    Decommissioned(Vec<u64>),
    /// A rank leaves its work.
    Leaves(u32),
    /// Milliseconds pass, and the hub looks.
    Passes(u64),
}

fn join(partition: u32) -> Join {
    Join {
        partition,
        name: format!("host-{partition}"),
        host: format!("host-{partition}"),
        address: [127, 0, 0, 1].into(),
        interface: String::new(),
        addresses: Vec::new(),
        store_port: 1,
        store_key: Vec::new(),
        gpus: Vec::new(),
        folder: String::new(),
    }
}

fn exit(rank: u32, state: RankState) -> RankExit {
    RankExit { at_us: -1, ..RankExit::new(rank, "", state) }
}

fn state() -> impl Strategy<Value = RankState> {
    prop_oneof![
        4 => Just(RankState::Finished),
        1 => Just(RankState::Stopped),
        1 => Just(RankState::Exited(1)),
        1 => Just(RankState::Signaled(9)),
        1 => Just(RankState::NotStarted),
    ]
}

fn reason() -> impl Strategy<Value = Option<String>> {
    prop_oneof![4 => Just(None), 1 => Just(Some("why".to_string()))]
}

fn rank() -> impl Strategy<Value = u32> {
    0..RANKS + 1
}

fn message() -> impl Strategy<Value = NodeMessage> {
    prop_oneof![
        4 => Just(NodeMessage::Ping),
        4 => (0..TASKS).prop_map(|partition| NodeMessage::Join(join(partition))),
        4 => rank().prop_map(|rank| NodeMessage::RankStarted { rank, pid: 1, age_us: 0 }),
        4 => (rank(), state()).prop_map(|(rank, state)| NodeMessage::RankEnded { exit: Box::new(exit(rank, state)) }),
        3 => (reason(), reason())
            .prop_map(|(problem, interrupted)| NodeMessage::Done { problem, interrupted, output: Vec::new() }),
        1 => (rank(), 0..3_u32)
            .prop_map(|(rank, nth)| NodeMessage::Phase { rank, name: "epoch".into(), nth, age_us: 0 }),
        2 => (rank(), 0..20_000_u64).prop_map(|(rank, idle_ms)| NodeMessage::Activity {
            ranks: vec![RankActivity { rank, idle_ms, step: Some(idle_ms), ..RankActivity::default() }]
        }),
        1 => (rank(), 0..5_u64).prop_map(|(rank, first)| {
            let report = TimedReport { step: first, at_ms: 0, values: "{}".into() };
            NodeMessage::Reports { rank, first, reports: vec![report; 3] }
        }),
        2 => (0..4_u32, prop_oneof![Just(None), (0..9_u64).prop_map(Some)])
            .prop_map(|(number, asked)| NodeMessage::Frozen { number, asked }),
        2 => (0..4_u32, prop::bool::weighted(0.1)).prop_map(|(number, late)| NodeMessage::Noticed { number, late }),
        2 => (0..99_u64).prop_map(|step| NodeMessage::Saved { step }),
        1 => (rank(), 0..3_u32).prop_map(|(rank, request)| NodeMessage::Stacks {
            request,
            ranks: vec![RankStacks { rank, text: "in train".into() }]
        }),
    ]
}

fn look() -> impl Strategy<Value = StageLook> {
    let running = prop_oneof![1 => Just(None), 4 => Just(Some(0)), 1 => Just(Some(TASKS))];
    (running, 0..TASKS + 3).prop_map(|(running, slots)| StageLook { running, slots, free: slots / 2 })
}

/// A few, so that they meet again.
fn task() -> impl Strategy<Value = SparkTask> {
    (0..2_u32, 0..2_u64, 0..2_u32).prop_map(|(stage, id, number)| {
        let instance = u64::from(stage) * 4 + id * 2 + u64::from(number);
        let host = host_digest(&format!("host-{}", instance % u64::from(TASKS)));
        SparkTask { instance, stage, id, number, host }
    })
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..TASKS + 1, prop_oneof![6 => Just(0), 1 => 1..3_u32], message())
            .prop_map(|(partition, ago, message)| Event::Message(partition, ago, message)),
        8 => (0..TASKS, state()).prop_map(|(partition, state)| Event::Goes(partition, state)),
        4 => Just(Event::AllJoin),
        2 => (0..TASKS).prop_map(Event::Disconnected),
        4 => (0..TASKS, task()).prop_map(|(partition, task)| Event::Comes(partition, task)),
        1 => reason().prop_map(Event::StageEnded),
        3 => look().prop_map(Event::Seen),
        1 => Just(Event::Cancelled),
        1 => rank().prop_map(Event::ResultLost),
        1 => Just(Event::AskedForStacks),
        2 => (0..TASKS, prop_oneof![Just(None), (0..90_000_u64).prop_map(Some)])
            .prop_map(|(partition, in_ms)| Event::Announced(partition, in_ms)),
        1 => prop::collection::vec(0..3_u64, 1..3).prop_map(Event::Decommissioned),
        2 => rank().prop_map(Event::Leaves),
        8 => prop_oneof![3 => 0..6_000_u64, 1 => 0..130_000_u64].prop_map(Event::Passes),
    ]
}

/// A job that is played, and what an onlooker remembers of it.
struct Play {
    state: JobState,
    now: Instant,
    outcome: Option<JobOutcome>,
    /// How the ranks of the present attempt were first said to have ended.
    told: BTreeMap<u32, RankState>,
    attempt: Attempt,
    /// Who has a seat, and whether its connection has stayed since.
    holders: BTreeMap<u32, (SparkTask, bool)>,
    /// When each node said something last, or a task came for its seat.
    heard: BTreeMap<u32, Instant>,
    /// The newest generation that has had places.
    generation: Option<Generation>,
    /// How many checkpoints were saved, and how often the job grew.
    saved: u32,
    grown: u32,
}

impl Play {
    fn new(
        max_restarts: u32,
        max_preemptions: u32,
        hang_timeout: Duration,
        gang: Gang,
        executor_blocks: bool,
        cooldown: u64,
        min_ranks: u32,
    ) -> Play {
        let mut job = Job::new("random", "t", RANKS, TASKS).unwrap();
        job.policy.max_restarts = max_restarts;
        job.policy.max_preemptions = Some(max_preemptions);
        job.policy.gang = gang;
        job.policy.executor_blocks = executor_blocks;
        job.policy.host_cooldown = Duration::from_secs(cooldown);
        job.policy.hang_timeout = hang_timeout;
        job.policy.elastic.min_ranks = if gang == Gang::Tasks { min_ranks } else { 0 };
        let now = Instant::now();
        let state = JobState::new(job, now);
        Play {
            state,
            now,
            outcome: None,
            told: BTreeMap::new(),
            attempt: Attempt::first(),
            holders: BTreeMap::new(),
            heard: BTreeMap::new(),
            generation: None,
            saved: 0,
            grown: 0,
        }
    }

    /// The places that a step has given.
    fn check_places(&mut self, orders: &[(u32, HubMessage)]) {
        let place = |(partition, order): &(u32, HubMessage)| match order {
            HubMessage::Place(place) => Some((*partition, (**place).clone())),
            _ => None,
        };
        let places: Vec<(u32, NodePlacement)> = orders.iter().filter_map(place).collect();
        let is_new = |place: &NodePlacement| self.generation.is_none_or(|before| place.generation > before);
        let new: Vec<&(u32, NodePlacement)> = places.iter().filter(|(_, place)| is_new(place)).collect();
        let Some((_, first)) = new.first() else {
            // One that comes again has the place that it had.
            assert!(places.iter().all(|(_, place)| Some(place.generation) == self.generation), "DRIVER-67");
            return;
        };
        assert_eq!(new.len(), places.len(), "DRIVER-67: never two generations at once");
        assert!(new.len() >= self.state.job.least_tasks() as usize, "DRIVER-67");
        let mut ranks: Vec<u32> =
            new.iter().flat_map(|(_, place)| place.ranks.iter().map(|at| at.rank)).collect();
        ranks.sort_unstable();
        assert!(ranks.into_iter().eq(0..first.world_size), "DRIVER-67: never a rank in two");
        let same = |place: &NodePlacement| place.generation == first.generation && place.store == first.store;
        assert!(
            new.iter().all(|(partition, place)| *partition == place.partition && same(place)),
            "DRIVER-67"
        );
        self.generation = Some(first.generation);
        if first.world_size < RANKS {
            self.told.clear();
        }
    }

    fn lost(&self) -> BTreeSet<u32> {
        let is_lost = |(_, node): &(&u32, &Node)| matches!(node, Node::Lost { .. });
        self.state.nodes.iter().filter(is_lost).map(|(partition, _)| *partition).collect()
    }

    /// One step; `speaker` is the partition whose words it is.
    fn step(&mut self, speaker: Option<u32>, event: impl FnOnce(&mut JobState, Instant, &mut Outbox)) {
        let (mut lost, mut out) = (self.lost(), Outbox::default());
        let lost_before = lost.clone();
        lost.retain(|partition| Some(*partition) != speaker);
        event(&mut self.state, self.now, &mut out);
        let orders = out.take();
        self.check_places(&orders);
        for (partition, order) in orders {
            assert!(!lost.contains(&partition), "DRIVER-27: {order:?} for node {partition}, which is lost");
            let is_final = matches!(order, HubMessage::Again { .. } | HubMessage::Place(_));
            assert!(!is_final || self.outcome.is_none(), "DRIVER-23: {order:?} after the outcome");
            assert!(order != HubMessage::StopServing || self.all_finished(), "DRIVER-19: {:?}", self.told);
        }
        if let Some(before) = &self.outcome {
            assert_eq!(self.state.outcome(), Some(before), "DRIVER-23");
        }
        if let Some(JobOutcome::Finished(_)) = self.state.outcome() {
            assert!(self.all_finished(), "TYPES-4: {:?}", self.told);
        }
        self.outcome = self.state.outcome().cloned();
        let restarts = self.state.take_restarts();
        self.grown +=
            u32::try_from(restarts.iter().filter(|restart| restart.cause.contains(" more ")).count())
                .unwrap();
        assert!(self.grown <= self.saved, "DRIVER-69");
        let have_gone = !lost_before.is_empty() && self.state.job.policy.executor_blocks;
        assert!(!have_gone || restarts.iter().all(|restart| !restart.in_place), "DRIVER-60: {lost_before:?}");
        if self.state.attempt() != self.attempt {
            (self.attempt, self.told) = (self.state.attempt(), BTreeMap::new());
            self.holders.values_mut().for_each(|(_, stayed)| *stayed = false);
        }
        let _ = self.state.status();
    }

    /// Whether each rank of the present attempt was first said to have ended well.
    fn all_finished(&self) -> bool {
        let told = &self.told;
        told.len() == self.state.world_size() as usize
            && told.values().all(|state| *state == RankState::Finished)
    }

    fn remember(&mut self, exit: &RankExit) {
        if exit.rank < self.state.world_size() {
            self.told.entry(exit.rank).or_insert_with(|| exit.state.clone());
        }
    }

    fn tell(&mut self, partition: u32, ago: u32, message: NodeMessage) {
        if let (NodeMessage::RankEnded { exit }, 0, true) = (&message, ago, partition < TASKS) {
            self.remember(exit);
        }
        self.saved += u32::from(matches!(message, NodeMessage::Saved { .. }));
        self.heard.insert(partition, self.now);
        let attempt = Attempt::new(self.attempt.restarts().saturating_sub(ago));
        if self.state.admits(attempt) || ago > 0 {
            self.step(Some(partition), |state, now, out| {
                state.message(now, partition, attempt, message, out);
            });
        }
    }

    fn play(&mut self, event: Event) {
        match event {
            Event::Message(partition, ago, message) => {
                self.tell(partition, if self.attempt.restarts() < ago { 0 } else { ago }, message);
            }
            Event::Goes(partition, state) => {
                for rank in [2 * partition, 2 * partition + 1] {
                    self.tell(partition, 0, NodeMessage::RankStarted { rank, pid: 1, age_us: 0 });
                    let exit = Box::new(exit(rank, state.clone()));
                    self.tell(partition, 0, NodeMessage::RankEnded { exit });
                }
                let done = NodeMessage::Done { problem: None, interrupted: None, output: Vec::new() };
                self.tell(partition, 0, done);
            }
            Event::AllJoin => {
                for partition in 0..TASKS {
                    self.tell(partition, 0, NodeMessage::Join(join(partition)));
                }
            }
            Event::Disconnected(partition) => {
                self.holders.entry(partition).and_modify(|(_, stayed)| *stayed = false);
                self.step(None, |state, now, _| state.disconnected(now, partition));
            }
            Event::Comes(partition, task) => self.comes(partition, task),
            Event::StageEnded(problem) => self.step(None, |state, now, out| {
                let attempt = state.attempt();
                state.stage_ended(now, attempt, problem, out);
            }),
            Event::Seen(look) => self.step(None, |state, now, _| {
                let attempt = state.attempt();
                state.stage_seen(now, attempt, look);
            }),
            Event::Cancelled => self.step(None, |state, now, out| state.cancel(now, "enough", out)),
            Event::ResultLost(rank) => {
                self.step(None, |state, now, out| state.result_lost(now, rank, "the disk is full", out));
            }
            Event::Announced(partition, in_ms) => self.step(None, |state, now, out| {
                state.notice(now, 0, partition, Notice { in_ms, reason: "spot".into() }, out);
            }),
            Event::Decommissioned(tasks) => {
                self.step(None, |state, now, out| state.decommissioned(now, &tasks, out));
            }
            Event::Leaves(rank) => {
                let error = RankError { kind: RankErrorKind::Preempted, ..RankError::default() };
                let exit = RankExit { error: Some(error), ..exit(rank, RankState::Raised) };
                self.tell(rank / 2, 0, NodeMessage::RankEnded { exit: Box::new(exit) });
            }
            Event::AskedForStacks => self.step(None, |state, now, out| state.ask_for_stacks(now, out)),
            Event::Passes(ms) => {
                self.now += Duration::from_millis(ms);
                // Who is silent for so long may be replaced.
                let (now, timeout) = (self.now, self.state.job.policy.node_timeout);
                let is_silent = |partition| self.heard.get(partition).is_none_or(|at| now >= *at + timeout);
                let silent = self.holders.iter_mut().filter(|(partition, _)| is_silent(partition));
                silent.for_each(|(_, (_, stayed))| *stayed = false);
                self.step(None, |state, now, out| _ = state.tick(now, out));
            }
        }
    }

    fn comes(&mut self, partition: u32, task: SparkTask) {
        let mut seat = Seat::Spare;
        let version = self.state.seats();
        let gathers = matches!(self.state.phase, JobPhase::Joining(_)) || self.state.job.is_elastic();
        self.step(Some(partition), |state, now, out| seat = state.seat(now, partition, task, out));
        let is_wanted = |change: &SeatChange| matches!(change, SeatChange::Wanted { .. });
        let wanted: Vec<SeatChange> = self.state.take_seat_changes().into_iter().filter(is_wanted).collect();
        let beside = self.state.has_seats_beside(partition);
        let cools = self.state.avoided(self.now, task.host).is_some();
        let known = self.state.cooling_hosts(self.now, 9, |_| 0.0).into_iter().map(|line| line.host);
        let going = self.state.going_hosts(9).into_iter().filter(|going| going.deadline.is_some());
        let mut left_alone = known.chain(going.map(|going| going.host));
        assert!(!cools || left_alone.any(|host| host_digest(&host) == task.host), "DRIVER-72");
        let may_cool =
            self.state.job.policy.gang == Gang::Tasks && !self.state.job.policy.host_cooldown.is_zero();
        assert!(!cools || may_cool, "DRIVER-64");
        assert!(wanted.is_empty() || (cools && seat == Seat::Spare), "DRIVER-64: {wanted:?}");
        assert!(wanted.len() <= 1, "DRIVER-64: once");
        let aside = cools && seat == Seat::Spare;
        // Of a gang that runs all seats are taken, if their nodes' words come from tasks, as they do elsewhere.
        let takes = cools && gathers && self.outcome.is_none();
        let holder = self.holders.get(&partition).copied();
        let is_holder = holder.is_some_and(|(before, _)| before == task);
        match (&seat, holder) {
            (Seat::Yours, None) => {
                assert!(!takes, "DRIVER-64, DRIVER-72: {task:?} of a host that is left alone")
            }
            (Seat::Yours, Some(_)) => assert!(is_holder, "DRIVER-50: {holder:?}"),
            (Seat::Spare, None) => assert!(aside, "DRIVER-52: a spare of a seat that nobody had"),
            (_, None) => panic!("DRIVER-52: {seat:?} of a seat that nobody had"),
            (_, Some(_)) if is_holder => panic!("DRIVER-50: {seat:?} for who has it"),
            (Seat::Inherited, Some((before, stayed))) => {
                assert!(!stayed || task.supersedes(&before), "DRIVER-50: {before:?} has stayed");
                assert!(beside || !before.supersedes(&task), "DRIVER-51");
                assert!(!takes, "DRIVER-64, DRIVER-72: {task:?} of a host that is left alone");
            }
            (Seat::Spare, Some((before, _))) => {
                assert!(beside || aside || !before.supersedes(&task), "DRIVER-51");
                assert_eq!(self.outcome, None, "a spare of a run that is over");
                let waits = task.supersedes(&before);
                let may_wait = beside || aside || self.state.is_lost(partition);
                assert!(!waits || may_wait, "DRIVER-51: {:?}", self.state.nodes);
                assert!(waits || self.state.seats() == version, "a spare changes nothing");
            }
            (Seat::Never(_), Some((before, _))) => assert!(before.supersedes(&task), "DRIVER-51"),
            (Seat::Over(_), Some(_)) => assert!(self.outcome.is_some(), "DRIVER-52"),
        }
        if matches!(seat, Seat::Yours | Seat::Inherited) {
            self.holders.insert(partition, (task, true));
            self.heard.insert(partition, self.now);
        }
    }

    /// Nobody says anything any more, and time passes.
    fn wait_for_the_outcome(&mut self) {
        for _ in 0..1000 {
            let mut next = None;
            self.step(None, |state, now, out| next = state.tick(now, out));
            if self.outcome.is_some() {
                return;
            }
            let next = next.expect("DRIVER-25: a job without an outcome has a deadline");
            assert!(next > self.now, "DRIVER-25: a deadline that has passed");
            self.now = next;
        }
        panic!("DRIVER-25: no outcome after all deadlines: {:?}", self.state);
    }
}

#[test]
fn a_task_that_has_joined_and_says_nothing_any_more_keeps_its_seat_from_no_other() {
    let mut play = Play::new(0, 1, Duration::ZERO, Gang::Barrier, false, 0, 0);
    let task = |instance, number| SparkTask { instance, stage: 1, id: 0, number, host: instance };
    let timeout = play.state.job.policy.node_timeout.as_millis() as u64;
    // It is over: so the others wait for ever.
    play.play(Event::Goes(2, RankState::Finished));
    play.play(Event::Comes(1, task(4, 0)));
    play.play(Event::AllJoin);
    play.play(Event::Passes(timeout));
    play.play(Event::Comes(1, task(5, 1)));
    assert_eq!(play.holders.get(&1), Some(&(task(5, 1), true)), "DRIVER-52");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_job_has_one_outcome_that_is_true(
        max_restarts in 0..3_u32,
        max_preemptions in 0..3_u32,
        watches in any::<bool>(),
        ends in any::<bool>(),
        gang in prop_oneof![Just(Gang::Barrier), Just(Gang::Tasks)],
        executor_blocks in any::<bool>(),
        cooldown in prop_oneof![Just(0_u64), Just(20), Just(3600)],
        min_ranks in prop_oneof![2 => Just(0_u32), 1 => Just(2), 1 => Just(4)],
        events in proptest::collection::vec(event(), 0..60),
    ) {
        let hang_timeout = if watches { Duration::from_secs(10) } else { Duration::ZERO };
        let mut play =
            Play::new(max_restarts, max_preemptions, hang_timeout, gang, executor_blocks, cooldown, min_ranks);
        for event in events {
            play.play(event);
        }
        if ends {
            play.play(Event::StageEnded(None));
        }
        play.wait_for_the_outcome();
        prop_assert!(play.state.restarts() <= max_restarts, "DRIVER-30");
        prop_assert!(play.state.attempts.preemptions <= max_preemptions, "DRIVER-57");
    }
}
