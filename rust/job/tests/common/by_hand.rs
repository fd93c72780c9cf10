//! A node that a test plays by hand, over a real connection to the hub.
#![allow(dead_code, reason = "each test program uses some of it")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

use std::collections::BTreeMap;

use phalanx_job::Hub;
use phalanx_rendezvous::{HubAddress, HubConnection};
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Attempt, Deadline, Join, NodePlacement, RankExit, RankProgram, RankState, SparkTask};

use crate::common::LONG;

pub(crate) fn soon() -> Deadline {
    Deadline::after(LONG)
}

pub(crate) fn hub_of(driver: &Hub) -> HubAddress {
    let spec =
        driver.node_spec(Attempt::first(), RankProgram::Command(Vec::new()), BTreeMap::new(), Vec::new());
    HubAddress { address: spec.hub, job: spec.job.id, token: spec.token, key: spec.hub_key }
}

/// A node whose store would be at this port.
pub(crate) fn join_by_hand(driver: &Hub, partition: u32, store_port: u16) -> HubConnection {
    join_attempt(driver, Attempt::first(), partition, store_port)
}

/// The same for this attempt.
pub(crate) fn join_attempt(driver: &Hub, attempt: Attempt, partition: u32, store_port: u16) -> HubConnection {
    let role = Role::Control { partition, attempt, task: SparkTask::default() };
    let mut node = HubConnection::open(&hub_of(driver), role, soon()).unwrap();
    let join = Join {
        partition,
        name: "by-hand".into(),
        host: "by-hand".into(),
        address: [127, 0, 0, 1].into(),
        interface: "lo".into(),
        addresses: vec![[127, 0, 0, 1].into()],
        store_port,
        store_key: Vec::new(),
        gpus: vec![],
        folder: String::new(),
    };
    node.send(&NodeMessage::Join(join), soon()).unwrap();
    node
}

pub(crate) fn place_of(node: &mut HubConnection) -> NodePlacement {
    match node.receive(soon()).unwrap() {
        HubMessage::Place(place) => *place,
        other => panic!("a place was expected, not {other:?}"),
    }
}

pub(crate) fn finished(rank: u32) -> NodeMessage {
    let exit = RankExit::new(rank, "by-hand", RankState::Finished);
    NodeMessage::RankEnded { exit: Box::new(exit) }
}

/// The node's only rank ends well, and the node is done.
pub(crate) fn ends_well(node: &mut HubConnection, rank: u32) {
    node.send(&finished(rank), soon()).unwrap();
    node.send(&NodeMessage::Done { problem: None, interrupted: None, output: vec![] }, soon()).unwrap();
}
