//! Blocks of a host where the run has no node: who serves them, how the ranks learn of it, and what if it is lost.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;
#[path = "common/play.rs"]
mod play;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use phalanx_job::{Event, Hub, run_carrier};
use phalanx_rendezvous::blocks::{BlockAccess, BlockClient, host_name};
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{
    Attempt, Carrier, Deadline, ErrorKind, FailureKind, Job, RankError, RankErrorKind, RankState, Result,
};

use common::{LONG, TestCallbacks, TestNode, listen, open, spawn_node, test_node};
use play::{Play, ended};

const FOLDER: &str = "phalanx-data-1";

fn carrier(host: &str, port: u16) -> Carrier {
    Carrier { host: host.into(), address: ([10, 0, 0, 9], port).into(), key: vec![7] }
}

fn carries(host: &str, port: u16) -> NodeMessage {
    NodeMessage::Carries(carrier(host, port))
}

#[test]
fn where_ranks_are_is_told_if_the_run_has_data_and_each_carrier_once() {
    let mut play = Play::with_data(0);
    let placed = play.state.take_placed();
    assert_eq!(
        (placed[0].attempt, &placed[0].hosts),
        (Attempt::first(), &vec!["host-0".to_string(), "host-1".to_string()])
    );
    play.tell(1, 2, carries("far", 1));
    assert_eq!(play.orders(), [(0, HubMessage::Carried(carrier("far", 1)))], "DRIVER-15");
    // Its own word again, after a reconnect, and its signs of life.
    play.tell(2, 2, carries("far", 1));
    play.tell(3, 2, NodeMessage::Ping);
    let again = HubMessage::Carried(carrier("far", 1));
    assert_eq!(play.orders(), [(0, again.clone()), (0, again), (2, HubMessage::Pong)], "DRIVER-15");
    let hosts: Vec<String> = play.state.take_carried().into_iter().map(|carried| carried.host).collect();
    assert_eq!(hosts, ["far"]);
    assert_eq!(Play::placed().state.take_placed(), [], "a run without data");
}

#[test]
fn a_host_keeps_its_first_carrier_and_a_run_that_is_over_none() {
    let mut play = Play::with_data(0);
    play.tell(1, 2, carries("far", 1));
    play.orders();
    play.tell(1, 3, carries("far", 2));
    assert_eq!(play.orders(), [(3, HubMessage::Released)], "DRIVER-14");
    play.finishes(2);
    assert!(play.is_finished());
    assert!(play.orders().contains(&(2, HubMessage::Released)), "DRIVER-17");
    play.tell(3, 4, carries("far", 3));
    assert_eq!(play.orders(), [(4, HubMessage::Released)], "DRIVER-17");
}

#[test]
fn a_lost_carrier_fails_the_run_as_a_lost_node_does() {
    // Its connection breaks, it falls silent, Spark ends its task.
    let ends: [fn(&mut Play); 3] = [
        |play| {
            play.breaks(2, 2);
            play.tick(3);
            assert!(play.orders().is_empty(), "it may come back");
            play.tick(4);
        },
        |play| {
            for seconds in [20, 40] {
                (0..2).for_each(|node| play.tell(seconds, node, NodeMessage::Ping));
            }
            play.tick(41);
        },
        |play| {
            let interrupted = Some("its Spark task was killed".into());
            play.tell(2, 2, NodeMessage::Done { problem: None, interrupted, output: vec![] });
        },
    ];
    for end in ends {
        let mut play = Play::with_data(0);
        play.tell(1, 2, carries("far", 1));
        play.orders();
        end(&mut play);
        let stopped = |order: &(u32, HubMessage)| matches!(order, (0 | 1, HubMessage::Stop { .. }));
        assert_eq!(play.orders().iter().filter(|order| stopped(order)).count(), 2, "DRIVER-16");
        (0..2).for_each(|rank| play.ends(42, rank, phalanx_types::RankState::Stopped));
        let failure = play.failure();
        assert_eq!((failure.kind, failure.host.as_str()), (FailureKind::LostNode, "far"), "DRIVER-16");
        assert!(
            failure.message.starts_with("the blocks of data sets on far are lost"),
            "{}",
            failure.message
        );
    }
}

#[test]
fn after_a_lost_carrier_ranks_start_again_in_another_stage() {
    let mut play = Play::with_data(1);
    play.tell(1, 2, carries("far", 1));
    play.breaks(2, 2);
    play.tick(5);
    (0..2).for_each(|rank| play.ends(6, rank, phalanx_types::RankState::Stopped));
    let restarts = play.state.take_restarts();
    assert_eq!(restarts.len(), 1);
    assert!(!restarts[0].in_place, "DRIVER-16: the blocks have to be written again");
    // What the old one says late changes nothing.
    play.orders();
    play.tell(7, 2, carries("far", 1));
    assert_eq!(play.orders(), [(2, HubMessage::Released)], "DRIVER-17");
    assert_eq!(play.state.outcome(), None);
}

#[test]
fn a_rank_that_misses_blocks_has_lost_them_and_all_start_again_in_another_stage() {
    for max_restarts in [0, 1] {
        let mut play = Play::with_data(max_restarts);
        let NodeMessage::RankEnded { mut exit } = ended(1, RankState::Raised, 0) else { panic!() };
        exit.error = Some(RankError { kind: RankErrorKind::BlocksLost, ..RankError::default() });
        play.tell(5, 1, NodeMessage::RankEnded { exit });
        play.done(5, 1);
        play.ends(6, 0, RankState::Stopped);
        if max_restarts == 0 {
            assert_eq!(
                (play.failure().kind, play.failure().rank),
                (FailureKind::LostNode, Some(1)),
                "DRIVER-61"
            );
        } else {
            let [restart] = &play.state.take_restarts()[..] else { panic!("DRIVER-61") };
            assert!(!restart.in_place, "DRIVER-61: the blocks have to be written again");
        }
    }
}

fn job_with_data() -> Job {
    let mut job = Job::new("carried", "t", 1, 1).unwrap();
    job.data_folder = FOLDER.into();
    job.policy.grace = Duration::from_millis(200);
    job
}

/// A rank that shows how it finds blocks, in `dir`, and ends when it is told there.
fn patient_rank(driver: &Hub, dir: &Path) -> TestNode {
    let shown = dir.display();
    let script = format!(
        "cp $PHALANX_RANK_DIR/blocks {shown}/new && mv {shown}/new {shown}/access
         while [ ! -e {shown}/over ]; do sleep 0.02; done"
    );
    test_node(driver, 0, &script, dir)
}

fn spawn_carrier(
    driver: &Hub,
    number: u32,
    interrupt: Arc<Mutex<Option<String>>>,
) -> JoinHandle<Result<bool>> {
    let program = phalanx_types::RankProgram::Python(None);
    let spec = driver.node_spec(Attempt::first(), program, std::collections::BTreeMap::new(), Vec::new());
    std::thread::spawn(move || {
        let mut callbacks = TestCallbacks { interrupt, ..TestCallbacks::default() };
        run_carrier(&spec, number, &[host_name()], Vec::new(), &mut callbacks)
    })
}

fn until_carried(driver: &Hub) {
    let deadline = Deadline::after(LONG);
    while !matches!(driver.next(deadline).unwrap().unwrap(), Event::Carried(_)) {}
}

#[test]
fn ranks_get_the_blocks_of_a_host_without_a_node_from_its_carrier() {
    let dir = phalanx_testkit::temp_dir("carriers");
    let file = dir.path().join(FOLDER).join("0-0");
    std::fs::create_dir(file.parent().unwrap()).unwrap();
    std::fs::write(&file, b"0123456789").unwrap();
    let driver = open(&job_with_data());
    let node = spawn_node(patient_rank(&driver, dir.path()), TestCallbacks::default());
    phalanx_testkit::eventually("the rank runs", LONG, || dir.path().join("access").exists());
    let access = std::fs::read(dir.path().join("access")).unwrap();
    let mut rank = BlockClient::new(serde_json::from_slice::<BlockAccess>(&access).unwrap());
    let carriers = [0, 1].map(|number| spawn_carrier(&driver, number, Arc::default()));
    until_carried(&driver);
    let mut came = Vec::new();
    phalanx_testkit::eventually("the node has told of it", LONG, || {
        came.clear();
        rank.fetch(&host_name(), file.to_str().unwrap(), 2, 3, &mut came).is_ok()
    });
    assert_eq!(came, b"234", "NODE-47");
    phalanx_testkit::eventually("one is enough", LONG, || carriers.iter().any(JoinHandle::is_finished));
    assert!(!carriers.iter().all(JoinHandle::is_finished), "DRIVER-14");
    std::fs::write(dir.path().join("over"), "").unwrap();
    assert_eq!(listen(&driver).failure, None);
    node.join().unwrap().unwrap();
    for carrier in carriers {
        assert!(carrier.join().unwrap().unwrap(), "JOB-2");
    }
}

#[test]
fn a_carrier_that_its_process_ends_takes_the_run_with_it() {
    let dir = phalanx_testkit::temp_dir("carriers");
    let driver = open(&job_with_data());
    let node = spawn_node(patient_rank(&driver, dir.path()), TestCallbacks::default());
    phalanx_testkit::eventually("the rank runs", LONG, || dir.path().join("access").exists());
    let interrupt = Arc::new(Mutex::new(None));
    let carrier = spawn_carrier(&driver, 0, Arc::clone(&interrupt));
    until_carried(&driver);
    *interrupt.lock().unwrap() = Some("its Spark task was killed".into());
    let ended = carrier.join().unwrap().unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Cancelled, "JOB-2");
    let failure = listen(&driver).failure.unwrap();
    assert_eq!((failure.kind, failure.host), (FailureKind::LostNode, host_name()), "DRIVER-16");
    node.join().unwrap().unwrap();
}

#[test]
fn a_carrier_goes_with_the_hub() {
    let dir = phalanx_testkit::temp_dir("carriers");
    let mut driver = open(&job_with_data());
    let node = spawn_node(patient_rank(&driver, dir.path()), TestCallbacks::default());
    phalanx_testkit::eventually("the rank runs", LONG, || dir.path().join("access").exists());
    let carrier = spawn_carrier(&driver, 0, Arc::default());
    until_carried(&driver);
    driver.close();
    assert!(carrier.join().unwrap().unwrap(), "JOB-2");
    let _ = node.join().unwrap();
}

#[test]
fn on_a_host_where_it_is_not_wanted_a_carrier_does_nothing() {
    let driver = open(&job_with_data());
    let program = phalanx_types::RankProgram::Python(None);
    let spec = driver.node_spec(Attempt::first(), program, std::collections::BTreeMap::new(), Vec::new());
    let served = run_carrier(&spec, 0, &["elsewhere".into()], Vec::new(), &mut TestCallbacks::default());
    assert!(!served.unwrap(), "JOB-1");
    assert!(
        driver
            .next(Deadline::after(Duration::from_millis(100)))
            .unwrap()
            .is_none_or(|event| { !matches!(event, Event::Carried(_)) })
    );
}
