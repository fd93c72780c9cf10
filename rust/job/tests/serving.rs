//! How long a node stays whose ranks have ended well while those of others run: they may need what it serves.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;
#[path = "common/outage.rs"]
mod outage;
#[path = "common/play.rs"]
mod play;

use std::path::Path;
use std::time::Duration;

use common::{LONG, TestCallbacks, listen, open, spawn_node, test_node};
use outage::{Network, Outage};
use phalanx_job::Hub;
use phalanx_rendezvous::store::protocol::{Query, put_bytes, put_greeting, put_query};
use phalanx_testkit::eventually;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::rank_file::{PieceWanted, RankFile};
use phalanx_types::{Deadline, Job, RankState, RunSnapshot};
use play::{Play, ended};

#[test]
fn nodes_are_told_to_stop_serving_when_all_ranks_have_ended_well_and_at_each_ping_until_they_are_done() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Finished, 0));
    play.tell(6, 0, NodeMessage::Ping);
    assert_eq!(play.orders(), [(0, HubMessage::Pong)], "DRIVER-19: rank 1 runs");
    play.tell(7, 1, ended(1, RankState::Finished, 0));
    assert_eq!(play.orders(), [(0, HubMessage::StopServing), (1, HubMessage::StopServing)], "DRIVER-19");
    play.done(7, 1);
    play.orders();
    play.breaks(8, 0);
    play.tell(9, 0, NodeMessage::Ping);
    play.tell(9, 1, NodeMessage::Ping);
    let orders = [(0, HubMessage::Pong), (0, HubMessage::StopServing), (1, HubMessage::Pong)];
    assert_eq!(play.orders(), orders, "DRIVER-19: the order may have gone with the connection");
    play.done(10, 0);
    assert!(play.is_finished());
}

#[test]
fn nobody_is_told_to_stop_serving_where_a_rank_failed() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Finished, 0));
    play.tell(6, 1, ended(1, RankState::Exited(3), 0));
    play.tell(7, 0, NodeMessage::Ping);
    let orders = play.orders();
    assert!(orders.iter().all(|(_, order)| *order != HubMessage::StopServing), "DRIVER-19: {orders:?}");
    assert!(orders.iter().any(|(to, order)| *to == 0 && matches!(order, HubMessage::Stop { .. })));
}

#[test]
fn a_lost_node_that_others_need_is_a_lost_node() {
    let mut play = Play::placed();
    play.tell(5, 0, ended(0, RankState::Finished, 0));
    play.breaks(6, 0);
    play.tick(9);
    assert!(matches!(play.orders()[..], [.., (1, HubMessage::Stop { .. })]), "DRIVER-19");
}

/// A job of a rank on each of two nodes, with data sets or without.
fn job(with_data: bool) -> Job {
    let mut job = Job::new("serving", "t", 2, 2).unwrap();
    job.policy.node_timeout = Duration::from_secs(4);
    job.policy.grace = Duration::from_millis(300);
    if with_data {
        job.data_folder = "phalanx-data-1".into();
    }
    job
}

/// Rank 0 writes a line and ends. Rank 1 waits until it may, and then has the store keep a value and give it back.
fn script(dir: &Path) -> String {
    let mut said = Vec::new();
    put_greeting(&mut said, 7);
    put_query(&mut said, Query::Set, b"/late");
    put_bytes(&mut said, b"value");
    put_query(&mut said, Query::Get, b"/late");
    let said: String = said.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!(
        r#"exec bash -c '
        [ $RANK = 1 ] || {{ echo the first has ended; exit 0; }}
        while [ ! -e {}/go ]; do sleep 0.02; done
        exec 4<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT || exit 3
        printf "{said}" >&4
        echo the store has $(head -c 17 <&4 | tail -c 5)'"#,
        dir.display()
    )
}

fn has_finished(driver: &Hub, rank: usize) -> bool {
    let snapshot = RunSnapshot::from_json(&driver.snapshot()).unwrap();
    snapshot.ranks.get(rank).is_some_and(|rank| rank.state == "finished")
}

#[test]
fn a_node_that_is_needed_serves_the_store_and_answers_until_the_last_rank_has_ended() {
    let (dir, driver) = (phalanx_testkit::temp_dir("serving"), open(&job(false)));
    let nodes = [0, 1].map(|partition| {
        spawn_node(test_node(&driver, partition, &script(dir.path()), dir.path()), TestCallbacks::default())
    });
    eventually("the first rank has ended", LONG, || has_finished(&driver, 0));
    let wanted = PieceWanted { rank: 0, file: RankFile::Output, start: 0, bytes: 100 };
    let piece = driver.read(wanted).wait(Deadline::after(LONG)).unwrap().expect("an answer");
    assert_eq!(piece.bytes, b"the first has ended\n", "a node that stays answers what the hub asks");
    std::fs::write(dir.path().join("go"), "").unwrap();
    let told = listen(&driver);
    assert_eq!(told.failure, None);
    assert!(told.output.contains("[rank 1] the store has value\n"), "DRIVER-19: {}", told.output);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn a_run_that_ended_well_ends_though_the_network_fails_when_its_nodes_part() {
    for (outage, with_data) in [(Outage::Reset, true), (Outage::Pause, false), (Outage::Forget, true)] {
        let (dir, driver) = (phalanx_testkit::temp_dir("serving"), open(&job(with_data)));
        let network = Network::before(driver.address());
        let nodes = [0, 1].map(|partition| {
            let mut test = test_node(&driver, partition, &script(dir.path()), dir.path());
            // The first is who stays.
            if partition == 0 {
                test.spec.hub.clone_from(&network.address);
            }
            spawn_node(test, TestCallbacks::default())
        });
        eventually("the first rank has ended", LONG, || has_finished(&driver, 0));
        network.fails(outage);
        std::fs::write(dir.path().join("go"), "").unwrap();
        eventually("the second rank has ended", LONG, || has_finished(&driver, 1));
        network.works();
        // Within the time that a test waits for anything.
        assert_eq!(listen(&driver).failure, None, "DRIVER-19, {outage:?}");
        for node in nodes {
            node.join().unwrap().unwrap();
        }
    }
}
