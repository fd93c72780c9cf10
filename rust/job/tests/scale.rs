//! Eight thousand ranks at one hub: real connections and frames, no processes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::collections::BTreeMap;

use common::{LONG, listen, open};
use phalanx_job::Hub;
use phalanx_testkit::fleet::{Fleet, FleetNode, ended};
use phalanx_types::{Deadline, FailureKind, Job, RankProgram, RankState};

const RANKS: u32 = 8000;
/// As few as there can be on a thousand hosts' work: each node costs two handshakes.
const NODES: u32 = 200;
/// No error has more lines.
const MAX_LINES: usize = 100;

fn soon() -> Deadline {
    Deadline::after(LONG)
}

/// A hub whose ranks all run.
fn running() -> (Hub, Fleet) {
    let hub = open(&Job::new("scale", "t", RANKS, NODES).unwrap());
    let spec = hub.node_spec(0, RankProgram::Command(Vec::new()), BTreeMap::new(), Vec::new());
    let mut fleet = Fleet::new(&spec);
    fleet.join_all();
    fleet.play("all have their places", soon(), |fleet| all(fleet, |node| node.place.is_some()));
    fleet.start_ranks();
    (hub, fleet)
}

fn all(fleet: &Fleet, is_so: impl Fn(&FleetNode) -> bool) -> bool {
    fleet.nodes().iter().all(is_so)
}

/// Ends the ranks of all nodes that are there, as nodes do that were told to.
fn stops(fleet: &mut Fleet, is_there: impl Fn(u32) -> bool) {
    let there: Vec<u32> = (0..NODES).filter(|partition| is_there(*partition)).collect();
    fleet.play("all that are there are to stop", soon(), |fleet| {
        there.iter().all(|partition| fleet.nodes()[*partition as usize].stopped.is_some())
    });
    there.iter().for_each(|partition| fleet.end_ranks(*partition, &RankState::Stopped));
    fleet.play("all that are there may go", soon(), |fleet| {
        there.iter().all(|partition| fleet.nodes()[*partition as usize].released)
    });
    there.iter().for_each(|partition| fleet.vanish(*partition));
}

#[test]
fn one_dead_rank_of_eight_thousand_is_named_and_the_newest_lines_of_all_stay() {
    let (mut hub, mut fleet) = running();
    let places: BTreeMap<u32, u32> =
        (0..NODES).flat_map(|node| fleet.ranks_of(node).into_iter().map(move |rank| (rank, node))).collect();
    assert_eq!(places.keys().copied().collect::<Vec<_>>(), (0..RANKS).collect::<Vec<_>>(), "PLACE-1");
    for (rank, node) in &places {
        fleet.write(*node, *rank, format!("rank {rank} is here\n").as_bytes());
    }
    fleet.play("all output is sent", soon(), |fleet| !fleet.has_unsent());
    let last = |rank: u32| hub.logs().newest(rank);
    fleet.play("all output has come", soon(), |_| {
        // Somebody has to take what is shown.
        while hub.next(Deadline::after(std::time::Duration::ZERO)).unwrap().is_some() {}
        (0..RANKS).all(|rank| !last(rank).is_empty())
    });

    let dead = 4321;
    fleet.tell(places[&dead], &ended(dead, places[&dead], RankState::Signaled(9)));
    stops(&mut fleet, |_| true);
    let failure = listen(&hub).failure.unwrap();
    assert_eq!((failure.kind, failure.rank), (FailureKind::Signal, Some(dead)));
    assert_eq!(failure.ranks.len(), RANKS as usize);
    let text = failure.render();
    assert!(text.lines().count() <= MAX_LINES, "TABLE-1: {text}");
    assert!(text.contains("ranks 0-4320, 4322-7999 on 200 hosts"), "{text}");

    hub.close();
    for rank in [0, dead, RANKS - 1] {
        assert_eq!(hub.logs().newest(rank), format!("rank {rank} is here\n"), "LOGTAIL-2");
    }
}

#[test]
fn forty_hosts_that_vanish_are_one_line_of_the_error() {
    let (hub, mut fleet) = running();
    fleet.ping_all();
    fleet.play("the hub knows who runs", soon(), |fleet| all(fleet, |node| !node.waits_for_pong()));
    let gone = 100..140;
    gone.clone().for_each(|partition| fleet.vanish(partition));
    stops(&mut fleet, |partition| !gone.contains(&partition));
    let failure = listen(&hub).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::LostNode);
    let first = failure.rank.unwrap();
    assert!((4000..5600).contains(&first), "{}", failure.message);
    let text = failure.render();
    assert!(text.lines().count() <= MAX_LINES, "TABLE-1: {text}");
    assert_eq!(text.matches("is lost with its node").count(), 2, "the cause, and the others: {text}");
}
