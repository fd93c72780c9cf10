//! Eight thousand ranks at one hub: real connections and frames, no processes. `scale_time.rs` has what depends on how
//! much time passes.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{LONG, listen, listen_for, open};
use phalanx_io::write_whole;
use phalanx_job::Hub;
use phalanx_testkit::fleet::{Fleet, FleetNode, ended};
use phalanx_types::{Attempt, Deadline, FailureKind, Job, NodeSpec, RankProgram, RankState};
use rustix::process::{Pid, Signal, kill_process};

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
    running_as(&Job::new("scale", "t", RANKS, NODES).unwrap())
}

fn running_as(job: &Job) -> (Hub, Fleet) {
    let hub = open(job);
    let spec = hub.node_spec(Attempt::first(), RankProgram::Command(Vec::new()), BTreeMap::new(), Vec::new());
    let mut fleet = Fleet::new(&spec);
    fleet.join_all();
    start(&mut fleet);
    (hub, fleet)
}

/// Has all ranks run, once their nodes have their places.
fn start(fleet: &mut Fleet) {
    fleet.play("all have their places", soon(), |fleet| all(fleet, |node| node.place.is_some()));
    fleet.start_ranks();
}

/// Has a rank die; the node that has it.
fn dies(fleet: &mut Fleet, rank: u32) -> u32 {
    let node = (0..NODES).find(|node| fleet.ranks_of(*node).contains(&rank)).unwrap();
    fleet.tell(node, &ended(rank, node, RankState::Signaled(9)));
    node
}

/// All nodes are to stop, and end their ranks.
fn all_stop(fleet: &mut Fleet) {
    fleet.play("all are to stop", soon(), |fleet| all(fleet, |node| node.stopped.is_some()));
    (0..NODES).for_each(|partition| fleet.end_ranks(partition, &RankState::Stopped));
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
    assert_eq!(places.keys().copied().collect::<Vec<_>>(), (0..RANKS).collect::<Vec<_>>(), "TYPES-14");
    for (rank, node) in &places {
        fleet.write(*node, *rank, format!("rank {rank} is here\n").as_bytes());
    }
    fleet.play("all output is sent", soon(), |fleet| !fleet.has_unsent());
    let last = |rank: u32| hub.logs().newest(rank);
    fleet.play("all output has come", soon(), |_| {
        // Somebody has to take what is shown.
        while hub.next(Deadline::after(Duration::ZERO)).unwrap().is_some() {}
        (0..RANKS).all(|rank| !last(rank).is_empty())
    });

    let dead = 4321;
    fleet.tell(places[&dead], &ended(dead, places[&dead], RankState::Signaled(9)));
    stops(&mut fleet, |_| true);
    let failure = listen(&hub).failure.unwrap();
    assert_eq!((failure.kind, failure.rank), (FailureKind::Signal, Some(dead)));
    assert_eq!(failure.ranks.len(), RANKS as usize);
    let text = failure.render();
    assert!(text.lines().count() <= MAX_LINES, "TYPES-23: {text}");
    assert!(text.contains("ranks 0-4320, 4322-7999 on 200 hosts"), "{text}");

    hub.close();
    for rank in [0, dead, RANKS - 1] {
        assert_eq!(hub.logs().newest(rank), format!("rank {rank} is here\n"), "JOB-14");
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
    assert!(text.lines().count() <= MAX_LINES, "TYPES-23: {text}");
    assert_eq!(text.matches("is lost with its task").count(), 2, "the cause, and the others: {text}");
}

/// The variable that makes [`acts_as_driver`] one: its directory.
const DRIVER: &str = "PHALANX_TEST_SCALE_DRIVER";
/// How long the driver is stopped, and after how much silence a node counts as lost.
const STOP: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(10);

/// Not a test of its own: the one below runs this test program again, to stop it.
#[test]
fn acts_as_driver() {
    let Some(directory) = std::env::var_os(DRIVER).map(PathBuf::from) else { return };
    let mut job = Job::new("scale", "t", RANKS, NODES).unwrap();
    job.policy.node_timeout = SILENCE;
    let hub = open(&job);
    let spec = hub.node_spec(Attempt::first(), RankProgram::Command(Vec::new()), BTreeMap::new(), Vec::new());
    write_whole(&directory.join("spec"), &spec.pack()).unwrap();
    let failure = listen_for(&hub, 3 * LONG).failure.unwrap();
    write_whole(&directory.join("failure"), failure.render().as_bytes()).unwrap();
}

#[test]
fn a_driver_that_is_stopped_for_twenty_seconds_loses_none_of_two_hundred_nodes() {
    let directory = phalanx_testkit::temp_dir("scale");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "acts_as_driver"]).env(DRIVER, directory.path()).stdout(Stdio::null());
    let driver = Ended(command.spawn().unwrap());
    let told = |name: &str| std::fs::read(directory.path().join(name)).ok();
    let spec = phalanx_testkit::eventually_some("the driver listens", LONG, || told("spec"));
    let mut fleet = Fleet::new(&NodeSpec::unpack(&spec).unwrap());
    fleet.join_all();
    start(&mut fleet);
    fleet.ping_all();
    fleet.play("the hub knows who runs", soon(), |fleet| all(fleet, |node| !node.waits_for_pong()));

    let pid = Pid::from_child(&driver.0);
    kill_process(pid, Signal::STOP).unwrap();
    // Nodes ping, and have no answer.
    fleet.play_for(STOP, |fleet| fleet.ping_all());
    assert!(all(&fleet, FleetNode::waits_for_pong));
    kill_process(pid, Signal::CONT).unwrap();
    fleet.play("all are answered", soon(), |fleet| all(fleet, |node| !node.waits_for_pong()));
    assert!(all(&fleet, |node| node.stopped.is_none() && node.is_connected()), "HUB-3");

    dies(&mut fleet, 4321);
    all_stop(&mut fleet);
    fleet.play("all may go", soon(), |fleet| all(fleet, |node| node.released));
    let failure = phalanx_testkit::eventually_some("the driver has the cause", LONG, || told("failure"));
    let text = String::from_utf8(failure).unwrap();
    assert!(text.contains("rank 4321 (host-") && text.lines().count() <= MAX_LINES, "TYPES-23: {text}");
}

/// A process that ends with this value.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn eight_thousand_ranks_start_again_in_place_and_the_last_cause_is_named() {
    let mut job = Job::new("scale", "t", RANKS, NODES).unwrap();
    job.policy.max_restarts = 1;
    let (hub, mut fleet) = running_as(&job);
    let places = |fleet: &Fleet| (0..NODES).map(|node| fleet.ranks_of(node)).collect::<Vec<_>>();
    let before = places(&fleet);
    dies(&mut fleet, 4321);
    all_stop(&mut fleet);
    fleet.play("all are to begin again", soon(), |fleet| {
        all(fleet, |node| node.again == Some(Attempt::first().next()))
    });
    fleet.begin_attempt(Attempt::first().next());
    start(&mut fleet);
    assert_eq!(places(&fleet), before, "TYPES-14");

    dies(&mut fleet, 17);
    all_stop(&mut fleet);
    fleet.play("all may go", soon(), |fleet| all(fleet, |node| node.released));
    let told = listen(&hub);
    assert_eq!(told.resubmits, [], "DRIVER-31");
    let line = "[phalanx] restart 1 of 1: rank 4321 (host-";
    assert_eq!(told.output.matches(line).count(), 1, "{}", told.output);
    let failure = told.failure.unwrap();
    assert_eq!((failure.kind, failure.rank, failure.restarts), (FailureKind::Signal, Some(17), 1));
    let text = failure.render();
    assert!(text.lines().count() <= MAX_LINES, "TYPES-23: {text}");
}
