//! Eight thousand ranks in time that a test makes: a fifth of their nodes is slow, in steps or to stop.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/play.rs"]
mod play;

use std::collections::BTreeMap;
use std::time::Instant;

use phalanx_job::driver::state::JobState;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage, RankActivity};
use phalanx_types::{Attempt, FailureKind, Job, RankExit, RankState};

use play::{GRACE, Play, join};

const RANKS: u32 = 8000;
const NODES: u32 = 1000;
/// The nodes from here on are slow.
const SLOW_FROM: u32 = 800;
/// No error has more lines.
const MAX_LINES: usize = 100;

/// All ranks run since second 1; the ranks of each node.
fn running() -> (Play, BTreeMap<u32, Vec<u32>>) {
    let began = Instant::now();
    let mut job = Job::new("scale", "t", RANKS, NODES).unwrap();
    job.policy.grace = GRACE;
    let mut play =
        Play { state: JobState::new(job, began), out: Outbox::default(), began, attempt: Attempt::first() };
    (0..NODES).for_each(|partition| play.tell(0, partition, NodeMessage::Join(join(partition))));
    let mut places = BTreeMap::new();
    for (partition, order) in play.orders() {
        let HubMessage::Place(place) = order else { panic!("{order:?}") };
        places.insert(partition, place.ranks.iter().map(|rank| rank.rank).collect::<Vec<u32>>());
    }
    assert_eq!(places.values().flatten().count(), RANKS as usize);
    for (partition, ranks) in &places {
        for rank in ranks {
            play.tell(1, *partition, NodeMessage::RankStarted { rank: *rank, pid: 1, age_us: 0 });
        }
    }
    (play, places)
}

fn ends(play: &mut Play, seconds: u64, node: u32, rank: u32, state: RankState) {
    let exit = RankExit::new(rank, format!("host-{node}"), state);
    play.tell(seconds, node, NodeMessage::RankEnded { exit: Box::new(exit) });
}

/// The ranks of these nodes end as they were told to.
fn stop(
    play: &mut Play,
    seconds: u64,
    places: &BTreeMap<u32, Vec<u32>>,
    nodes: std::ops::Range<u32>,
    dead: u32,
) {
    for node in nodes {
        for rank in places[&node].iter().filter(|rank| **rank != dead) {
            ends(play, seconds, node, *rank, RankState::Stopped);
        }
        play.done(seconds, node);
    }
}

/// Rank 99 dies in second 10: all nodes are told to stop then, and four fifths do.
fn dies(play: &mut Play, places: &BTreeMap<u32, Vec<u32>>) {
    let dead = 99;
    let node = places.iter().find(|(_, ranks)| ranks.contains(&dead)).map(|(node, _)| *node).unwrap();
    assert!(node < SLOW_FROM);
    ends(play, 10, node, dead, RankState::Signaled(9));
    let stopped = play.orders();
    assert_eq!(stopped.len(), NODES as usize, "a stop order to all, at once");
    assert!(stopped.iter().all(|(_, order)| matches!(order, HubMessage::Stop { .. })));
    stop(play, 10, places, 0..SLOW_FROM, dead);
}

#[track_caller]
fn names_the_dead(play: &Play) {
    let failure = play.failure();
    assert_eq!((failure.kind, failure.rank), (FailureKind::Signal, Some(99)));
    let text = failure.render();
    assert!(text.lines().count() <= MAX_LINES, "TYPES-23: {text}");
}

#[test]
fn sixteen_hundred_ranks_that_are_slow_at_once_are_one_line() {
    let (mut play, places) = running();
    let mut lines = Vec::new();
    for step in 0..12 {
        let seconds = 2 + 4 * step;
        for (node, ranks) in &places {
            let step_us = if *node < SLOW_FROM { 250_000 } else { 1_000_000 + u64::from(*node) * 100 };
            let told = ranks.iter().map(|rank| RankActivity {
                rank: *rank,
                step: Some(step),
                step_us: Some(step_us),
                ..RankActivity::default()
            });
            play.tell(seconds, *node, NodeMessage::Activity { ranks: told.collect() });
        }
        play.tick(seconds + 1);
        lines.extend(play.state.take_notices());
    }
    let [line] = &lines[..] else { panic!("DRIVER-35: {lines:?}") };
    let end = " on 200 hosts are slow: 1.08 to 1.10 s a step, the median of the ranks is 0.25 s";
    assert!(line.starts_with("[phalanx] ranks ") && line.ends_with(end), "DRIVER-35: {line}");
}

#[test]
fn the_cause_is_told_within_two_seconds_of_the_grace_that_two_hundred_slow_nodes_use_up() {
    let (mut play, places) = running();
    dies(&mut play, &places);
    let grace = GRACE.as_secs();
    for seconds in 10..=10 + grace {
        play.tick(seconds);
        assert!(play.state.outcome().is_none(), "they may use their grace");
    }
    // Their guards have ended the ranks since.
    stop(&mut play, 10 + grace + 2, &places, SLOW_FROM..NODES, 99);
    names_the_dead(&play);
}

#[test]
fn two_hundred_nodes_that_never_tell_how_their_ranks_ended_are_waited_for_fifteen_seconds_longer() {
    let (mut play, places) = running();
    dies(&mut play, &places);
    let mut seconds = 10;
    while play.state.outcome().is_none() {
        seconds += 1;
        // They are there, and say no more than that.
        (SLOW_FROM..NODES).for_each(|node| play.tell(seconds, node, NodeMessage::Ping));
        play.tick(seconds);
        play.orders();
        assert!(seconds <= 10 + GRACE.as_secs() + 15, "it is over by then");
    }
    names_the_dead(&play);
}
