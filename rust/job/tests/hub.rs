//! The hub under peers that misbehave: garbage, silence, half-open connections, nodes that vanish and come back.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/by_hand.rs"]
mod by_hand;
mod common;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use by_hand::{finished, hub_of, join_attempt, join_by_hand, place_of, soon};
use common::{LONG, TestCallbacks, listen, open, spawn_node, test_node};
use phalanx_job::{Event, Hub, HubOptions};
use phalanx_rendezvous::wire::Frame;
use phalanx_rendezvous::{HubAddress, HubConnection, Sender};
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Attempt, ErrorKind, FailureKind, Job, RankExit, RankProgram, RankState, SparkTask};

#[test]
fn garbage_slow_and_half_open_clients_disturb_no_job() {
    let job = Job::new("hub", "t", 2, 2).unwrap();
    let dir = phalanx_testkit::temp_dir("hub");
    let driver = open(&job);
    let mut held = Vec::new();
    for i in 0..200_u32 {
        let mut client = TcpStream::connect(driver.address()).unwrap();
        match i % 4 {
            0 => client.write_all(&u32::MAX.to_le_bytes()).unwrap(),
            1 => client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
            2 => client.write_all(&[3, 0]).unwrap(),
            _ => {}
        }
        held.push(client);
    }
    let nodes: Vec<_> = (0..2)
        .map(|p| spawn_node(test_node(&driver, p, "echo fine", dir.path()), TestCallbacks::default()))
        .collect();
    let told = listen(&driver);
    assert_eq!(told.failure, None, "HUB-11");
    assert_eq!(told.output.matches("fine").count(), 2);
    for node in nodes {
        node.join().unwrap().unwrap();
    }
}

#[test]
fn a_connection_that_does_not_prove_itself_is_closed() {
    let job = Job::new("hub", "t", 1, 1).unwrap();
    let driver = open(&job);
    let mut silent = TcpStream::connect(driver.address()).unwrap();
    silent.set_read_timeout(Some(LONG)).unwrap();
    let mut rest = Vec::new();
    silent.read_to_end(&mut rest).expect("HUB-10: the hub closes it");
    assert_eq!(rest, b"", "HUB-10: it was told nothing");
}

#[test]
fn a_token_of_another_job_and_a_job_of_another_id_are_refused() {
    let job = Job::new("hub", "t", 1, 1).unwrap();
    let driver = open(&job);
    let mut other = hub_of(&driver);
    other.job = "else".into();
    let refused = HubConnection::open(
        &other,
        Role::Control { partition: 0, attempt: Attempt::first(), task: SparkTask::default() },
        soon(),
    )
    .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    let mut wrong = hub_of(&driver);
    wrong.token[31] ^= 1;
    let refused = HubConnection::open(
        &wrong,
        Role::Result { rank: 0, attempt: Attempt::first(), upload: 0, bytes: 4 },
        soon(),
    )
    .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert!(driver.result_path(0).is_none());
}

#[test]
fn a_connection_that_ends_while_both_sides_prove_themselves_is_not_taken_for_a_refusal() {
    let job = Job::new("hub", "t", 1, 1).unwrap();
    let driver = open(&job);
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let hub = HubAddress { address: between.local_addr().unwrap().to_string(), ..hub_of(&driver) };
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut node, _) = between.accept().unwrap();
            let mut driver = TcpStream::connect(driver.address()).unwrap();
            let mut handshake = [0; 4096];
            let read = node.read(&mut handshake).unwrap();
            driver.write_all(&handshake[..read]).unwrap();
            let read = driver.read(&mut handshake).unwrap();
            node.write_all(&handshake[..read]).unwrap();
            assert!(node.read(&mut handshake).unwrap() > 0, "its proof, which gets no further");
        });
        HubConnection::open(
            &hub,
            Role::Control { partition: 0, attempt: Attempt::first(), task: SparkTask::default() },
            soon(),
        )
        .unwrap_err()
    });
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[test]
fn a_node_that_vanishes_is_lost_and_its_ranks_with_it() {
    let job = Job::new("hub", "t", 2, 2).unwrap();
    let driver = open(&job);
    let mut gone = join_by_hand(&driver, 0, 1);
    let mut stays = join_by_hand(&driver, 1, 1);
    let rank = place_of(&mut gone).ranks[0].rank;
    place_of(&mut stays);
    gone.send(&NodeMessage::RankStarted { rank, pid: 1, age_us: 0 }, soon()).unwrap();
    drop(gone);
    match stays.receive(soon()).unwrap() {
        HubMessage::Stop { .. } => {}
        other => panic!("DRIVER-24: a stop was expected, not {other:?}"),
    }
    stays.send(&NodeMessage::Done { problem: None, interrupted: None, output: vec![] }, soon()).unwrap();
    let failure = listen(&driver).failure.unwrap();
    assert_eq!((failure.kind, failure.rank), (FailureKind::LostNode, Some(rank)));
    assert!(failure.message.contains("by-hand"), "{}", failure.message);
}

#[test]
fn a_node_that_comes_back_in_time_goes_on_and_repeats_itself_without_harm() {
    let job = Job::new("hub", "t", 1, 1).unwrap();
    let driver = open(&job);
    let mut node = join_by_hand(&driver, 0, 1);
    place_of(&mut node);
    node.send(&NodeMessage::RankStarted { rank: 0, pid: 1, age_us: 0 }, soon()).unwrap();
    drop(node);
    let mut back = HubConnection::open(
        &hub_of(&driver),
        Role::Control { partition: 0, attempt: Attempt::first(), task: SparkTask::default() },
        soon(),
    )
    .unwrap();
    for message in [NodeMessage::RankStarted { rank: 0, pid: 1, age_us: 9 }, finished(0), finished(0)] {
        back.send(&message, soon()).unwrap();
    }
    back.send(&NodeMessage::Done { problem: None, interrupted: None, output: vec![] }, soon()).unwrap();
    assert_eq!(listen(&driver).failure, None, "TYPES-9");
    while back.receive::<HubMessage>(soon()).unwrap() != HubMessage::Released {}
}

#[test]
fn a_node_that_connects_for_output_again_is_told_what_has_arrived_of_its_own_logs() {
    let job = Job::new("hub", "t", 2, 2).unwrap();
    let driver = open(&job);
    let (mut node, mut other) = (join_by_hand(&driver, 0, 1), join_by_hand(&driver, 1, 1));
    let own = place_of(&mut node).ranks[0].rank;
    place_of(&mut other);
    let opened = |partition| {
        HubConnection::open(
            &hub_of(&driver),
            Role::Logs { partition, attempt: Attempt::first(), instance: 0 },
            soon(),
        )
        .unwrap()
    };
    let writes = |connection: &mut HubConnection, rank, offset, bytes: &[u8]| {
        let frame = Frame::Output { rank, offset, bytes };
        connection.sender().send_frame(&frame, soon()).unwrap();
        connection.send(&NodeMessage::Ping, soon()).unwrap();
        assert_eq!(connection.receive::<HubMessage>(soon()).unwrap(), HubMessage::Pong);
    };
    let mut logs = opened(0);
    assert_eq!(logs.welcome().received, []);
    // As an attempt that begins does, which has yet to tell of its ranks' starts.
    writes(&mut logs, own, 0, b"early\n");
    let mut logs = opened(0);
    assert_eq!(logs.welcome().received, [(own, 6)], "NODE-28");
    node.send(&NodeMessage::RankStarted { rank: own, pid: 1, age_us: 0 }, soon()).unwrap();
    writes(&mut logs, own, 6, b"late\n");
    assert_eq!(opened(0).welcome().received, [(own, 11)], "NODE-28");
    assert_eq!(opened(1).welcome().received, [], "NODE-28: another node's log of the rank begins anew");
}

#[test]
fn a_stage_that_ends_without_a_word_is_a_failure() {
    let job = Job::new("hub", "t", 2, 2).unwrap();
    let driver = open(&job);
    driver.stage_ended(Attempt::first(), None);
    let failure = listen(&driver).failure.expect("TYPES-4");
    assert!(failure.message.contains("did not hear how ranks 0-1 ended"), "{}", failure.message);
}

#[test]
fn a_stage_that_failed_before_any_task_joined_is_a_start_failure_with_its_words() {
    let job = Job::new("hub", "t", 2, 2).unwrap();
    let driver = open(&job);
    driver.stage_ended(Attempt::first(), Some("no module named phalanx on host-7".into()));
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Start);
    assert!(failure.message.contains("host-7"));
}

#[test]
fn a_hub_on_ipv6_serves_as_one_on_ipv4_does() {
    let mut job = Job::new("hub", "t", 2, 1).unwrap();
    job.policy.grace = Duration::from_millis(300);
    let dir = phalanx_testkit::temp_dir("hub");
    let options = HubOptions { bind: "::1".into(), advertise: "::1".into(), work_dir: std::env::temp_dir() };
    let driver = match Hub::open(job.clone(), &options) {
        Ok(driver) => driver,
        Err(e) => return eprintln_skip(&e.to_string()),
    };
    assert!(driver.address().starts_with("[::1]:"), "{}", driver.address());
    let node =
        spawn_node(test_node(&driver, 0, "echo master $MASTER_ADDR", dir.path()), TestCallbacks::default());
    let told = listen(&driver);
    node.join().unwrap().unwrap();
    assert_eq!(told.failure, None);
    assert!(told.output.contains("[rank 1] master ::1\n"), "{}", told.output);
}

#[test]
fn a_driver_whose_advertised_address_is_not_its_own_is_reached_through_the_others() {
    let job = Job::new("hub", "t", 1, 1).unwrap();
    // An address for documentation (RFC 5737): no host's own, as one behind NAT isn't.
    let options =
        HubOptions { bind: String::new(), advertise: "198.51.100.7".into(), work_dir: std::env::temp_dir() };
    let driver = Hub::open(job.clone(), &options).unwrap();
    let (host, port) = driver.address().rsplit_once(':').unwrap();
    assert_eq!(host, "198.51.100.7");
    let mut hub = hub_of(&driver);
    hub.address = format!("127.0.0.1:{port}");
    HubConnection::open(
        &hub,
        Role::Control { partition: 0, attempt: Attempt::first(), task: SparkTask::default() },
        soon(),
    )
    .unwrap();
    let bound = HubOptions { bind: "198.51.100.7".into(), ..options };
    assert!(Hub::open(job, &bound).is_err(), "a bind address that was asked for is no wish");
}

#[allow(clippy::print_stderr, reason = "a skipped test says why")]
fn eprintln_skip(why: &str) {
    eprintln!("skipped: no IPv6 here ({why})");
}

#[test]
fn a_result_that_the_driver_can_not_keep_fails_the_job_and_says_why() {
    for left_in in ["", "x"] {
        let job = Job::new("hub", "t", 1, 1).unwrap();
        let (dir, work) = (phalanx_testkit::temp_dir("hub"), phalanx_testkit::temp_dir("hub"));
        let options = HubOptions {
            bind: "127.0.0.1".into(),
            advertise: "127.0.0.1".into(),
            work_dir: work.path().to_path_buf(),
        };
        let driver = Hub::open(job.clone(), &options).unwrap();
        // As if the file system had no room for another file.
        for results in std::fs::read_dir(work.path()).unwrap() {
            std::fs::remove_dir(results.unwrap().path()).unwrap();
        }
        let script = format!(r#"printf '{left_in}' > "$PHALANX_RANK_DIR/result""#);
        let node = spawn_node(test_node(&driver, 0, &script, dir.path()), TestCallbacks::default());
        let failure = listen(&driver).failure.unwrap();
        assert_eq!(failure.kind, FailureKind::Exception, "TYPES-4");
        let why = "rank 0 succeeded, but the driver can't keep its result: can't ";
        assert!(failure.message.starts_with(why), "{}", failure.message);
        assert!(failure.message.contains("No such file"), "{}", failure.message);
        node.join().unwrap().unwrap();
    }
}

/// A connection that brings rank 0's result of 8 bytes, of which the hub has `received`.
fn bring(driver: &Hub, upload: u64, received: u64) -> (HubConnection, Sender) {
    let role = Role::Result { rank: 0, attempt: Attempt::first(), upload, bytes: 8 };
    let node = HubConnection::open(&hub_of(driver), role, soon()).unwrap();
    assert_eq!(node.welcome().received, [(0, received)], "HUB-15");
    let sender = node.sender();
    (node, sender)
}

#[test]
fn a_result_that_comes_again_is_kept_once_and_is_no_event() {
    let job = Job::new("hub", "t", 1, 1).unwrap();
    let (work, driver) = {
        let work = phalanx_testkit::temp_dir("hub");
        let local = "127.0.0.1".to_string();
        let options =
            HubOptions { bind: local.clone(), advertise: local, work_dir: work.path().to_path_buf() };
        (work, Hub::open(job, &options).unwrap())
    };
    let mut control = join_by_hand(&driver, 0, 1);
    place_of(&mut control);
    let (mut older, mut from_older) = bring(&driver, 1, 0);
    from_older.send_frame(&Frame::Data(b"half"), soon()).unwrap();
    // As of a task that Spark started again, while the hub takes the older connection for open.
    let (mut newer, mut from_newer) = bring(&driver, 2, 0);
    from_newer.send_frame(&Frame::Data(b"who"), soon()).unwrap();
    assert_eq!(older.receive::<HubMessage>(soon()).unwrap_err().kind(), ErrorKind::Closed, "HUB-14");
    from_newer.send_frame(&Frame::Data(b"le me"), soon()).unwrap();
    assert_eq!(newer.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released);
    // The node did not hear that, and brings it again.
    drop(newer);
    let (mut again, _) = bring(&driver, 2, 8);
    assert_eq!(again.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released, "HUB-14");
    let (mut again, mut from_again) = bring(&driver, 3, 0);
    from_again.send_frame(&Frame::Data(b"whole me"), soon()).unwrap();
    assert_eq!(again.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released, "HUB-14");

    control.send(&finished(0), soon()).unwrap();
    control.send(&NodeMessage::Done { problem: None, interrupted: None, output: vec![] }, soon()).unwrap();
    assert_eq!(listen(&driver).failure, None, "HUB-14: a second arrival is no event");
    let result = driver.result_path(0).unwrap();
    assert_eq!(std::fs::read(&result).unwrap(), b"whole me");
    let files = std::fs::read_dir(result.parent().unwrap()).unwrap().count();
    assert_eq!(files, 1, "DRIVER-12: what did not arrive whole left nothing in {work:?}");
}

#[test]
fn a_result_of_an_attempt_that_is_over_is_passed_over() {
    let mut job = Job::new("hub", "t", 1, 1).unwrap();
    job.policy.max_restarts = 1;
    let driver = open(&job);
    let mut control = join_by_hand(&driver, 0, 1);
    place_of(&mut control);
    let (mut late, mut from_late) = bring(&driver, 0, 0);
    from_late.send_frame(&Frame::Data(b"is st"), soon()).unwrap();
    let exit = Box::new(RankExit::new(0, "by-hand", RankState::Signaled(9)));
    for message in [
        NodeMessage::RankEnded { exit },
        NodeMessage::Done { problem: None, interrupted: None, output: vec![] },
    ] {
        control.send(&message, soon()).unwrap();
    }
    while !matches!(
        control.receive::<HubMessage>(soon()).unwrap(),
        HubMessage::Again { attempt, .. } if attempt.restarts() == 1
    ) {}
    from_late.send_frame(&Frame::Data(b"ale"), soon()).unwrap();
    assert_eq!(late.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released, "HUB-14");
    assert_eq!(driver.result_path(0), None, "HUB-14");
}

#[test]
fn a_restart_begins_a_generation_that_whoever_hears_of_it_finds() {
    let mut job = Job::new("hub", "t", 1, 1).unwrap();
    job.policy.max_restarts = 1;
    let driver = open(&job);
    let told = || {
        let program = RankProgram::Command(Vec::new());
        driver.node_spec(Attempt::first(), program, BTreeMap::new(), Vec::new()).generation
    };
    let mut node = join_by_hand(&driver, 0, 1);
    let first = place_of(&mut node).generation;
    assert_eq!(told(), first);
    let exit = Box::new(RankExit::new(0, "by-hand", RankState::Signaled(9)));
    node.send(&NodeMessage::RankEnded { exit }, soon()).unwrap();
    node.send(&NodeMessage::Done { problem: None, interrupted: None, output: vec![] }, soon()).unwrap();
    let mut shown = String::new();
    while !shown.contains("restart 1 of 1") {
        if let Event::Output(text) = driver.next(soon()).unwrap().expect("in time") {
            shown.push_str(&text);
        }
    }
    let second = told();
    assert_ne!(second, first, "DRIVER-8");
    let mut node = join_attempt(&driver, Attempt::first().next(), 0, 1);
    assert_eq!(place_of(&mut node).generation, second, "DRIVER-8: what a carrier is told is what ranks have");
}

#[test]
fn a_node_that_can_not_begin_says_why_itself() {
    let job = Job::new("hub", "t", 1, 1).unwrap();
    let dir = phalanx_testkit::temp_dir("hub");
    let driver = open(&job);
    // No folder can be made below a file.
    let work = dir.path().join("file");
    std::fs::write(&work, "").unwrap();
    let node = spawn_node(test_node(&driver, 0, "true", &work), TestCallbacks::default());
    let failure = listen(&driver).failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Start);
    assert!(failure.message.starts_with("can't make the folder "), "{}", failure.message);
    assert!(node.join().unwrap().is_err());
}
