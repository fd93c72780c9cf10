//! A thousand nodes of an elastic job, of which a hundred are lost within a minute, in time that a test makes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use phalanx_job::driver::state::{JobState, Point};
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Gang, Job, NodePlacement, RankExit, RankState};

use play::{join, task};

/// How long each look at the time is apart.
const TICK: Duration = Duration::from_millis(100);
/// How many of them are from a node's loss to the next one's.
const LOSS_EVERY: u32 = 6;
/// And from a node's ping to the next.
const PING_EVERY: u32 = 50;

/// Nodes that do what they are told to within a tick.
struct Nodes {
    state: JobState,
    out: Outbox,
    now: Instant,
    /// The attempt for which each that lives speaks.
    alive: BTreeMap<u32, Attempt>,
    /// The ranks that each has.
    ranks: BTreeMap<u32, Vec<u32>>,
    /// How many ranks each attempt had whose nodes all got their places.
    sizes: Vec<u32>,
    attempts: u32,
    ordered: u64,
}

impl Nodes {
    fn joined(count: u32) -> Nodes {
        let mut job = Job::new("scale", "t", count, count).unwrap();
        job.policy.gang = Gang::Tasks;
        job.policy.elastic.min_ranks = count / 2;
        let now = Instant::now();
        let alive = (0..count).map(|partition| (partition, Attempt::first())).collect();
        let (ranks, sizes) = (BTreeMap::new(), Vec::new());
        let (state, out) = (JobState::new(job, now), Outbox::default());
        let mut nodes = Nodes { state, out, now, alive, ranks, sizes, attempts: 0, ordered: 0 };
        for partition in 0..count {
            nodes.state.seat(now, partition, task(partition + 1), &mut nodes.out);
            nodes.tell(partition, NodeMessage::Join(join(partition)));
        }
        nodes
    }

    fn tell(&mut self, partition: u32, message: NodeMessage) {
        self.state.message(self.now, partition, self.alive[&partition], message, &mut self.out);
    }

    /// A tenth of a second goes by, in which nodes follow their orders.
    fn tick(&mut self) {
        self.now += TICK;
        self.state.tick(self.now, &mut self.out);
        for (partition, order) in self.out.take() {
            self.ordered += 1;
            if self.alive.contains_key(&partition) {
                self.follow(partition, order);
            }
        }
        self.attempts += u32::try_from(self.state.take_restarts().len()).unwrap();
        let places = self.state.take_phases().into_iter().filter_map(|phase| match phase.point {
            Point::AllJoined(ranks) => Some(ranks),
            _ => None,
        });
        self.sizes.extend(places);
        let _ = (self.state.take_notices(), self.state.take_reasons(), self.state.take_restarted());
    }

    fn follow(&mut self, partition: u32, order: HubMessage) {
        match order {
            HubMessage::Place(place) => self.place(partition, &place),
            HubMessage::Stop { .. } => {
                for rank in self.ranks.remove(&partition).unwrap_or_default() {
                    let exit = RankExit::new(rank, format!("host-{partition}"), RankState::Stopped);
                    self.tell(partition, NodeMessage::RankEnded { exit: Box::new(exit) });
                }
                let done = NodeMessage::Done { problem: None, interrupted: None, output: Vec::new() };
                self.tell(partition, done);
            }
            HubMessage::Again { attempt, .. } => {
                self.alive.insert(partition, attempt);
                self.tell(partition, NodeMessage::Join(join(partition)));
            }
            other => panic!("node {partition} is told {other:?}"),
        }
    }

    fn place(&mut self, partition: u32, place: &NodePlacement) {
        let ranks: Vec<u32> = place.ranks.iter().map(|rank| rank.rank).collect();
        for rank in &ranks {
            self.tell(partition, NodeMessage::RankStarted { rank: *rank, pid: 1, age_us: 0 });
        }
        self.ranks.insert(partition, ranks);
    }

    /// They say that they are there; the answers don't count as orders.
    fn ping(&mut self) {
        for partition in self.alive.keys().copied().collect::<Vec<_>>() {
            self.tell(partition, NodeMessage::Ping);
        }
        let (_, others): (Vec<_>, Vec<_>) =
            self.out.take().into_iter().partition(|(_, order)| *order == HubMessage::Pong);
        for (partition, order) in others {
            self.out.send(partition, order);
        }
    }

    fn lose(&mut self, partition: u32) {
        self.alive.remove(&partition);
        self.ranks.remove(&partition);
        self.state.disconnected(self.now, partition);
    }
}

/// A tenth of so many nodes is lost within a minute, one after the other, whatever the others do at that moment.
fn a_tenth_is_lost(count: u32) -> Nodes {
    let mut nodes = Nodes::joined(count);
    let losses = count / 10;
    for tick in 0..losses * LOSS_EVERY + 100 {
        nodes.tick();
        if tick % PING_EVERY == 0 {
            nodes.ping();
        }
        if tick < losses * LOSS_EVERY && tick % LOSS_EVERY == 0 {
            // Each time another part of them, so that the first is among the lost, too.
            nodes.lose((tick / LOSS_EVERY * 7) % count);
        }
    }
    nodes
}

#[test]
fn a_thousand_nodes_that_lose_a_hundred_in_a_minute_go_on_with_nine_hundred() {
    let nodes = a_tenth_is_lost(1000);
    assert!(nodes.state.outcome().is_none(), "DRIVER-71: it goes on while nodes go");
    assert_eq!(nodes.alive.len(), 900);
    let last: BTreeSet<u32> = nodes.ranks.values().flatten().copied().collect();
    assert!(last.iter().copied().eq(0..900), "ranks are dense");
    assert_eq!((nodes.state.world_size(), nodes.sizes.last()), (900, Some(&900)));
    assert!(nodes.sizes.windows(2).all(|two| two[0] > two[1]), "{:?}", nodes.sizes);
    assert!((5..=100).contains(&nodes.attempts), "{}", nodes.attempts);
}

#[test]
fn an_attempt_takes_three_orders_a_node_however_many_there_are() {
    for count in [200, 1000] {
        let nodes = a_tenth_is_lost(count);
        let attempts = u64::from(nodes.attempts) + 1;
        // The order to stop, to begin again, and the place.
        assert!(nodes.ordered <= 3 * attempts * u64::from(count), "{count}: {} in {attempts}", nodes.ordered);
    }
}
