//! The machine in a world of helpers that come back in any order, or fail, and of a hub, ranks and a process that do
//! what they like.

mod notices;
mod seats;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use phalanx_supervisor::{ExitStatus, GuardEvent};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::rank_file::{PieceWanted, RankFile};
use phalanx_types::{
    Attempt, Carrier, Error, ErrorKind, Join, NodePlacement, Notice, Policy, RankExit, RankPlace, RankState,
};
use proptest::prelude::*;

use super::ranks::DISK_PATIENCE;
use super::*;

const RANKS: u32 = 3;
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn rules() -> Rules {
    let policy = Policy { join_timeout: Duration::from_secs(30), ..Policy::default() };
    Rules {
        place_within: policy.join_timeout,
        files_within: policy.join_timeout,
        drain_timeout: Duration::from_secs(10),
        activity_every: Duration::from_secs(5),
        has_data: false,
    }
}

fn placement(serves_store: bool) -> NodePlacement {
    NodePlacement {
        partition: 0,
        generation: phalanx_types::Generation::new(3),
        tasks: 2,
        ranks: (0..RANKS).map(|rank| RankPlace { rank, local_rank: rank }).collect(),
        world_size: 2 * RANKS,
        local_world_size: RANKS,
        local_world_index: 0,
        local_world_count: 2,
        store: SocketAddr::new(LOCALHOST, 1),
        store_key: Vec::new(),
        serves_store,
        peers: Vec::new(),
        gpus: Vec::new(),
        interface: String::new(),
        folder_count: 1,
        host_ranks: [0, RANKS - 1],
    }
}

fn join() -> Box<Join> {
    Box::new(Join {
        partition: 0,
        name: "h".into(),
        host: "h".into(),
        address: LOCALHOST,
        interface: String::new(),
        addresses: Vec::new(),
        store_port: 1,
        store_key: Vec::new(),
        gpus: Vec::new(),
        folder: String::new(),
    })
}

/// What may happen next.
#[derive(Debug, Clone)]
enum Step {
    /// One of the helpers comes back; whether with what it was sent for.
    Helper {
        nth: usize,
        well: bool,
    },
    /// A rank's process ends, with this code.
    Ends {
        rank: u32,
        code: i32,
    },
    Order(OrderOf),
    Interrupted,
    Renewed,
    HubGone,
    GuardGone,
    Reported,
    Passes {
        millis: u64,
    },
}

#[derive(Debug, Clone)]
enum OrderOf {
    Place { serves: bool },
    Stop,
    Stacks,
    Read { rank: u32 },
    Carried,
    Freeze,
    Thaw,
    StopServing,
    Released,
    Again,
    Spare,
    GivenUp,
    Pong,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let order = prop_oneof![
        4 => any::<bool>().prop_map(|serves| OrderOf::Place { serves }),
        1 => Just(OrderOf::Stop),
        1 => Just(OrderOf::Stacks),
        1 => (0..RANKS + 1).prop_map(|rank| OrderOf::Read { rank }),
        1 => Just(OrderOf::Carried),
        1 => Just(OrderOf::Freeze),
        1 => Just(OrderOf::Thaw),
        1 => Just(OrderOf::StopServing),
        1 => Just(OrderOf::Released),
        1 => Just(OrderOf::Again),
        1 => Just(OrderOf::Spare),
        1 => Just(OrderOf::GivenUp),
        1 => Just(OrderOf::Pong),
    ];
    let step = prop_oneof![
        20 => (0..8_usize, prop::bool::weighted(0.95)).prop_map(|(nth, well)| Step::Helper { nth, well }),
        4 => (0..RANKS, prop_oneof![3 => Just(0), 1 => Just(7)]).prop_map(|(rank, code)| Step::Ends { rank, code }),
        10 => order.prop_map(Step::Order),
        1 => Just(Step::Interrupted),
        1 => Just(Step::Renewed),
        1 => Just(Step::HubGone),
        1 => Just(Step::GuardGone),
        1 => Just(Step::Reported),
        4 => prop_oneof![3 => 0..400_u64, 1 => 0..40_000_u64].prop_map(|millis| Step::Passes { millis }),
    ];
    prop::collection::vec(step, 0..80)
}

/// Who has been sent for something and is not back.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Away {
    Line,
    Locate,
    Files,
    Guard,
    Store,
    Rank(u32),
    Output(u32),
    Evidence(u32, RankState, Instant),
    Upload,
    GuardEnd,
    Close,
    Relay,
    ExecutorLog,
}

struct World {
    machine: Machine,
    now: Instant,
    away: Vec<Away>,
    is_up: bool,
    hub_gone: bool,
    /// The processes that the guard has, once it was asked to start them; and whether it was told to end them.
    living: BTreeSet<u32>,
    is_stopping: bool,
    has_guard: bool,
    guard_is_over: bool,
    launched: bool,
    stopped_preparing: bool,
    told: BTreeMap<u32, Instant>,
    /// When the disk last answered.
    disk: Instant,
    done: bool,
    outcomes: usize,
    outcome: Option<Result<AfterAttempt>>,
}

fn exit_of(rank: u32, state: RankState) -> RankExit {
    RankExit {
        rank,
        host: "h".into(),
        error: None,
        state,
        message: String::new(),
        last_lines: Vec::new(),
        log_path: String::new(),
        at_us: 0,
        last_output_us: None,
        asked: None,
    }
}

impl World {
    fn new() -> World {
        let now = Instant::now();
        World {
            machine: Machine::new(rules(), None),
            now,
            away: vec![Away::Line],
            is_up: false,
            hub_gone: false,
            living: BTreeSet::new(),
            is_stopping: false,
            has_guard: false,
            guard_is_over: false,
            launched: false,
            stopped_preparing: false,
            told: BTreeMap::new(),
            disk: now,
            done: false,
            outcomes: 0,
            outcome: None,
        }
    }

    fn on(&mut self, event: Event) {
        let is_over = self.outcomes > 0;
        let mut asked = None;
        if let Event::Line(Heard::Order(order @ (HubMessage::Stacks { .. } | HubMessage::Read { .. }))) =
            &event
        {
            asked = Some(order.clone());
        }
        let mut out = Vec::new();
        self.machine.on(self.now, event, &mut out);
        let answers = |action: &Action| {
            let stacks =
                matches!(action, Action::AskStacks { .. } | Action::Send(NodeMessage::Stacks { .. }));
            let refused = matches!(action, Action::Send(NodeMessage::Piece { piece: Err(_), .. }));
            let piece = refused || matches!(action, Action::Read { .. });
            if matches!(asked, Some(HubMessage::Stacks { .. })) { stacks } else { asked.is_some() && piece }
        };
        assert_eq!(
            out.iter().filter(|action| answers(action)).count(),
            usize::from(asked.is_some()),
            "NODE-17"
        );
        assert!(!is_over || asked.is_some() || out.is_empty(), "NODE-14: {out:?}");
        out.into_iter().for_each(|action| self.act(action));
        if let Some(outcome) = self.machine.outcome() {
            self.outcome = Some(outcome);
            self.outcomes += 1;
            assert_eq!(self.outcomes, 1, "NODE-14");
            let helpers = [Away::Locate, Away::Files, Away::Guard, Away::Store, Away::GuardEnd];
            assert!(!self.away.iter().any(|away| helpers.contains(away)), "NODE-14: {:?}", self.away);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Locate => self.away.push(Away::Locate),
            Action::Prepare(_) => self.away.extend([Away::Files, Away::Guard, Away::Store]),
            Action::StopPreparing => self.stopped_preparing = true,
            Action::Launch => {
                assert!(!self.launched && !self.stopped_preparing, "NODE-18");
                self.launched = true;
                if !self.guard_is_over {
                    self.living = (0..RANKS).collect();
                    self.away.extend((0..RANKS).map(Away::Rank));
                }
            }
            Action::StopRanks { .. } => self.is_stopping = true,
            Action::Gather(ended) => {
                let state = match ended.end {
                    ProcessEnd::Exited(Exit { how: ExitStatus::Code(0), .. }) => RankState::Finished,
                    ProcessEnd::Exited(_) => RankState::Exited(7),
                    ProcessEnd::WithGuard { .. } => RankState::Signaled(9),
                    ProcessEnd::NotStarted { .. } => RankState::NotStarted,
                };
                self.away.push(Away::Evidence(ended.rank, state, self.now));
            }
            Action::GatherWithoutDisk(ended) => self.tell_exit(ended.rank),
            Action::TellExit(evidence) => self.tell_exit(evidence.exit.rank),
            Action::Upload { .. } => self.away.push(Away::Upload),
            Action::EndGuard => self.away.push(Away::GuardEnd),
            Action::CloseOutput => self.away.push(Away::Close),
            Action::FinishCopies => self.away.extend([Away::Relay, Away::ExecutorLog]),
            Action::TellDone { .. } => {
                assert!(!self.launched || self.guard_is_over, "NODE-15");
                assert!(!self.launched || self.told.len() == RANKS as usize, "NODE-15: {:?}", self.told);
                self.done = true;
            }
            Action::Tell(..)
            | Action::Send(_)
            | Action::Forget
            | Action::AskStacks { .. }
            | Action::Read { .. }
            | Action::Freeze { .. }
            | Action::Thaw { .. }
            | Action::Notify(_)
            | Action::TellCarrier(_)
            | Action::TellActivity(_)
            | Action::Started { .. }
            | Action::Renew
            | Action::Abandon
            | Action::StopRelay => {}
        }
    }

    fn tell_exit(&mut self, rank: u32) {
        assert_eq!(self.told.insert(rank, self.now), None, "each end is told once");
    }

    /// One of those that are away comes back.
    fn back(&mut self, nth: usize, well: bool) {
        if self.away.is_empty() {
            return;
        }
        let away = self.away.swap_remove(nth % self.away.len());
        let result = || if well { Ok(()) } else { Err(Error::new(ErrorKind::Io, "it failed")) };
        match away {
            Away::Line if well => {
                self.is_up = true;
                self.on(Event::Line(Heard::Up(None)));
            }
            Away::Line => self.on(Event::Line(Heard::NotUp(Error::new(ErrorKind::Unreachable, "no way")))),
            Away::Locate => self.on(Event::Located(result().map(|()| join()))),
            Away::Files => self.on(Event::FilesMade(result())),
            Away::Guard => {
                self.has_guard = well;
                self.on(Event::Guarded(result()));
            }
            Away::Store => self.on(Event::StoreTried(result())),
            Away::Rank(rank) if self.living.contains(&rank) && well => {
                self.on(Event::Guard(GuardEvent::Started { rank, pid: 100 + rank, at: self.now }));
            }
            Away::Rank(rank) if self.living.remove(&rank) => {
                let reason = "no such program".into();
                self.on(Event::Guard(GuardEvent::NotStarted { rank, reason, at: self.now }));
            }
            Away::Rank(_) => {}
            Away::Output(rank) => self.on(Event::OutputEnded { rank }),
            Away::Evidence(rank, state, _) => {
                self.disk = self.now;
                let (exit, at) = (exit_of(rank, state), self.now);
                self.on(Event::Gathered(Box::new(Evidence { exit, at, has_result: true })));
            }
            Away::Upload => self.on(Event::Uploaded(result())),
            Away::GuardEnd => self.on(Event::GuardEnded),
            Away::Close => self.on(Event::OutputClosed),
            Away::Relay => self.on(Event::Relayed),
            Away::ExecutorLog => self.on(Event::LogCopied),
        }
        self.empties();
    }

    fn ends(&mut self, rank: u32, code: i32) {
        if !self.guard_is_over && self.living.remove(&rank) {
            self.away.retain(|away| *away != Away::Rank(rank));
            self.away.push(Away::Output(rank));
            let how = ExitStatus::Code(code);
            self.on(Event::Guard(GuardEvent::Ended { rank, how, by_itself: true, at: self.now }));
            self.empties();
        }
    }

    /// A guard that was told to stop says when nothing is left.
    fn empties(&mut self) {
        if self.launched && self.is_stopping && self.living.is_empty() && !self.guard_is_over {
            self.guard_is_over = true;
            self.on(Event::Guard(GuardEvent::Empty));
        }
    }

    fn order(&mut self, order: HubMessage) {
        if self.is_up && !self.hub_gone {
            self.on(Event::Line(Heard::Order(order)));
        }
    }

    fn passes(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        // What one moment begins the next one may end.
        (0..2).for_each(|_| self.on(Event::Tick));
        let (told, disk, now) = (&self.told, self.disk, self.now);
        let is_late = |away: &Away| {
            matches!(away, Away::Evidence(rank, _, since)
                if !told.contains_key(rank) && now >= disk.max(*since) + DISK_PATIENCE)
        };
        assert!(!self.away.iter().any(is_late), "NODE-19");
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Helper { nth, well } => self.back(nth, well),
            Step::Ends { rank, code } => self.ends(rank, code),
            Step::Order(order) => self.order(match order {
                OrderOf::Place { serves } => HubMessage::Place(Box::new(placement(serves))),
                OrderOf::Stop => HubMessage::Stop { reason: "a test".into() },
                OrderOf::Stacks => HubMessage::Stacks { request: 5 },
                OrderOf::Read { rank } => {
                    let wanted = PieceWanted { rank, file: RankFile::Output, start: 0, bytes: 1 };
                    HubMessage::Read { request: 5, wanted }
                }
                OrderOf::Carried => {
                    let address = SocketAddr::new(LOCALHOST, 1);
                    HubMessage::Carried(Carrier { host: "c".into(), address, key: Vec::new() })
                }
                OrderOf::Freeze => HubMessage::Freeze { number: 5 },
                OrderOf::Thaw => HubMessage::Thaw { number: 5 },
                OrderOf::StopServing => HubMessage::StopServing,
                OrderOf::Released => HubMessage::Released,
                OrderOf::Again => HubMessage::Again { attempt: Attempt::new(1), reason: "r".into() },
                OrderOf::Spare => HubMessage::Spare,
                OrderOf::GivenUp => HubMessage::GivenUp { reason: "given up".into() },
                OrderOf::Pong => HubMessage::Pong,
            }),
            Step::Interrupted => self.on(Event::Interrupted("its task was killed".into())),
            Step::Renewed if self.is_up && !self.hub_gone => self.on(Event::Line(Heard::Renewed)),
            Step::HubGone if self.is_up && !self.hub_gone => {
                self.hub_gone = true;
                self.on(Event::Line(Heard::Gone("it is closed".into())));
            }
            Step::Renewed | Step::HubGone => {}
            Step::GuardGone => {
                if self.has_guard && !self.guard_is_over {
                    self.guard_is_over = true;
                    self.living.clear();
                    self.on(Event::Guard(GuardEvent::Gone { reason: "killed".into() }));
                }
            }
            Step::Reported => self.on(Event::Reported),
            Step::Passes { millis } => self.passes(millis),
        }
    }

    /// From here on helpers come back, the guard ends what it was told to, and the hub lets go who is done.
    fn closes(&mut self) {
        let began = self.now;
        self.order(HubMessage::Place(Box::new(placement(false))));
        while self.outcomes == 0 {
            for _ in 0..self.away.len() {
                self.back(0, true);
            }
            self.order(HubMessage::Stop { reason: "the test is over".into() });
            if self.is_stopping {
                (0..RANKS).for_each(|rank| self.ends(rank, 0));
            }
            if self.done {
                self.order(HubMessage::Released);
            }
            self.passes(1000);
            // Nobody is waited for who is gone.
            let within = Duration::from_secs(if self.hub_gone { 9 } else { 90 });
            assert!(self.now < began + within, "NODE-16: {:?}", self.machine);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_happens_a_node_says_what_it_owes_and_returns_once(
        steps in steps(),
        after in prop::collection::vec(any::<bool>(), 0..5),
    ) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.step(step));
        world.closes();
        for stacks in after {
            // What comes late finds nothing to do.
            let order = if stacks { OrderOf::Stacks } else { OrderOf::Stop };
            world.step(Step::Order(order));
            world.step(Step::Interrupted);
        }
    }

    #[test]
    fn a_node_whose_ranks_end_well_stays_until_nobody_needs_it(serves: bool, is_told_early: bool) {
        let mut world = World::new();
        let settle = |world: &mut World| {
            while !world.away.is_empty() {
                world.back(0, true);
            }
        };
        settle(&mut world);
        world.order(HubMessage::Place(Box::new(placement(serves))));
        settle(&mut world);
        if is_told_early {
            world.order(HubMessage::StopServing);
        }
        (0..RANKS).for_each(|rank| world.ends(rank, 0));
        settle(&mut world);
        world.passes(1000);
        settle(&mut world);
        prop_assert_eq!(world.done, !serves || is_told_early, "DRIVER-19");
        world.order(HubMessage::StopServing);
        prop_assert!(world.done, "DRIVER-19");
        world.order(HubMessage::Released);
        prop_assert_eq!(world.outcomes, 1);
    }
}
