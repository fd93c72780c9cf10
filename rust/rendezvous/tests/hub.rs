//! The hub's server and its clients at their limits: silence, and peers that don't read.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::io::Read;
use std::net::TcpListener;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use common::{Heard, LONG, TOKEN, control, serve, soon};
use phalanx_rendezvous::wire::{Frame, MAX_DATA_BYTES};
use phalanx_rendezvous::{HubAddress, HubConnection};
use phalanx_testkit::eventually;
use phalanx_testkit::fleet::join_of;
use phalanx_types::message::{HubMessage, NodeMessage, Role};
use phalanx_types::{Attempt, Deadline, ErrorKind, Join, SparkTask};

#[test]
fn a_hub_that_says_nothing_is_waited_for_until_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let hub = HubAddress { address, job: "job".into(), token: TOKEN, key: Vec::new() };
    let began = Instant::now();
    let error =
        HubConnection::open(&hub, control(), Deadline::after(Duration::from_millis(200))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "HUB-1");
    assert!(began.elapsed() < LONG, "HUB-1");

    let (_server, hub) = serve(&Heard::default());
    let mut connection = HubConnection::open(&hub, control(), soon()).unwrap();
    let late = connection.receive::<HubMessage>(Deadline::after(Duration::from_millis(100))).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout, "HUB-1");
    connection.send(&NodeMessage::Ping, soon()).unwrap();
    assert_eq!(connection.receive::<HubMessage>(soon()).unwrap(), HubMessage::Pong, "it goes on after that");
}

#[test]
fn a_crowd_of_strangers_crowds_out_nobody_from_elsewhere() {
    phalanx_io::raise_descriptor_limit();
    // A machine that takes longer than a stranger may is asked again.
    phalanx_testkit::eventually("a crowd comes within the time that each has", LONG, || {
        let (server, hub) = serve(&Heard::default());
        let began = Instant::now();
        let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        other.bind(&std::net::SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
        other.connect(&hub.address.parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
        let mut crowd: Vec<TcpStream> =
            (0..1200).map(|_| TcpStream::connect(&hub.address).unwrap()).collect();
        crowd[0].set_read_timeout(Some(LONG)).unwrap();
        let _ = crowd[0].read_to_end(&mut Vec::new());
        if began.elapsed() > phalanx_rendezvous::hub_server::PROOF_TIMEOUT / 2 {
            return false;
        }
        other.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let end = TcpStream::from(other).read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(end.kind(), std::io::ErrorKind::WouldBlock, "IO-11: it is still heard");
        drop(server);
        true
    });
}

#[test]
fn output_that_nobody_takes_stays_with_its_sender_and_facts_pass_it() {
    let heard = Heard::default();
    let (server, hub) = serve(&heard);
    let mut logs = HubConnection::open(
        &hub,
        Role::Logs { partition: 0, attempt: Attempt::first(), instance: 0 },
        soon(),
    )
    .unwrap();
    let mut sender = logs.sender();
    let bytes = vec![b'x'; MAX_DATA_BYTES];
    let mut sent = 0;
    let error = loop {
        let frame = Frame::Output { rank: 0, offset: sent as u64, bytes: &bytes };
        match sender.send_frame(&frame, Deadline::after(Duration::from_secs(1))) {
            Ok(()) => sent += bytes.len(),
            Err(error) => break error,
        }
        assert!(sent < 256 << 20, "HUB-12: somebody keeps it");
    };
    assert_eq!(error.kind(), ErrorKind::Timeout, "HUB-12");
    assert_eq!(heard.output.load(Ordering::Acquire), 0, "HUB-12");

    let mut node = HubConnection::open(&hub, control(), soon()).unwrap();
    node.send(&NodeMessage::Ping, soon()).unwrap();
    assert_eq!(node.receive::<HubMessage>(soon()).unwrap(), HubMessage::Pong, "HUB-12: facts pass it");

    heard.takes_output.store(true, Ordering::Release);
    server.wake();
    let until = Instant::now() + LONG;
    while heard.output.load(Ordering::Acquire) < sent && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(heard.output.load(Ordering::Acquire) >= sent, "all of it comes when it is taken");
    assert!(logs.receive::<HubMessage>(Deadline::after(Duration::from_millis(50))).is_err());
}

#[test]
fn a_closed_hub_leaves_no_socket() {
    let (mut server, hub) = serve(&Heard::default());
    let mut node = HubConnection::open(&hub, control(), soon()).unwrap();
    server.close();
    let gone = node.receive::<HubMessage>(soon()).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Closed, "HUB-13");
    let port = hub.address.rsplit_once(':').unwrap().1.parse::<u16>().unwrap();
    TcpListener::bind(("127.0.0.1", port)).expect("HUB-13");
}

#[test]
fn a_disk_that_hangs_holds_up_results_and_nothing_else() {
    let heard = Heard::default();
    let (mut server, hub) = serve(&heard);
    let bytes = 32 << 20;
    let result = Role::Result { rank: 0, attempt: Attempt::first(), upload: 0, bytes };
    let hangs = heard.disk.hangs.lock().unwrap();
    let mut connection = HubConnection::open(&hub, result, soon()).unwrap();
    let mut sender = connection.sender();
    let sending = std::thread::spawn(move || {
        let piece = vec![7; MAX_DATA_BYTES];
        for _ in 0..bytes / MAX_DATA_BYTES as u64 {
            sender.send_frame(&Frame::Data(&piece), soon()).unwrap();
        }
    });
    let mut node = HubConnection::open(&hub, control(), soon()).unwrap();
    for _ in 0..10 {
        node.send(&NodeMessage::Ping, soon()).unwrap();
        assert_eq!(node.receive::<HubMessage>(soon()).unwrap(), HubMessage::Pong, "HUB-16");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!sending.is_finished(), "HUB-17: most of it waits at the sender");
    assert_eq!(heard.disk.bytes.load(Ordering::Acquire), 0);
    drop(hangs);
    assert_eq!(connection.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released);
    assert_eq!(heard.disk.bytes.load(Ordering::Acquire) as u64, bytes, "HUB-14");
    sending.join().unwrap();
    server.close();
    assert_eq!(Arc::strong_count(&heard.disk.hangs), 1, "HUB-18: no thread has it");
}

/// A connection that brings 8 bytes, and how many of them the hub has.
fn bring(hub: &HubAddress, rank: u32, attempt: u32, upload: u64) -> (HubConnection, u64) {
    let role = Role::Result { rank, attempt: Attempt::new(attempt), upload, bytes: 8 };
    let connection = HubConnection::open(hub, role, soon()).unwrap();
    let [(of, received)] = connection.welcome().received[..] else { panic!("one rank's was expected") };
    assert_eq!(of, rank);
    (connection, received)
}

/// The same, that has brought half of them.
fn half(hub: &HubAddress, rank: u32, attempt: u32) -> HubConnection {
    let (connection, received) = bring(hub, rank, attempt, u64::from(attempt));
    if received == 0 {
        connection.sender().send_frame(&Frame::Data(b"half"), soon()).unwrap();
    }
    connection
}

#[test]
fn a_result_goes_on_where_the_hub_has_it_and_a_stale_connection_adds_nothing() {
    let heard = Heard::default();
    let (mut server, hub) = serve(&heard);
    let written = |bytes| {
        eventually("the disk has it", LONG, || heard.disk.bytes.load(Ordering::Acquire) == bytes);
    };
    let mut stale = half(&hub, 0, 0);
    written(4);
    let (mut newer, received) = bring(&hub, 0, 0, 0);
    assert_eq!(received, 4, "HUB-15");
    // It may not know that it is stale, and its bytes may be on their way.
    let _ = stale.sender().send_frame(&Frame::Data(b"late"), soon());
    assert_eq!(stale.receive::<HubMessage>(soon()).unwrap_err().kind(), ErrorKind::Closed, "HUB-14");
    newer.sender().send_frame(&Frame::Data(b"mo"), soon()).unwrap();
    written(6);
    drop(newer);
    (newer, _) = bring(&hub, 0, 0, 0);
    assert_eq!(newer.welcome().received, [(0, 6)], "HUB-15");
    newer.sender().send_frame(&Frame::Data(b"re"), soon()).unwrap();
    assert_eq!(newer.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released);
    written(8);
    // Its node may not have heard that.
    let (mut again, received) = bring(&hub, 0, 0, 0);
    assert_eq!(received, 8, "HUB-15");
    assert_eq!(again.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released, "HUB-15");

    drop(half(&hub, 1, 0));
    written(12);
    assert_eq!(bring(&hub, 1, 0, 9).1, 0, "HUB-15: another upload of the rank begins anew");
    drop(half(&hub, 2, 0));
    written(16);
    heard.attempt.store(1, Ordering::Release);
    assert_eq!(bring(&hub, 2, 1, 0).1, 0, "HUB-15: so does another attempt's");
    drop(half(&hub, 3, 1));
    written(20);
    server.close();
    assert_eq!(Arc::strong_count(&heard.disk.hangs), 1, "HUB-15: of what isn't whole nothing is left");
}

#[test]
fn what_has_arrived_of_a_result_goes_with_its_attempt() {
    let heard = Heard::default();
    let (server, hub) = serve(&heard);
    let before = Arc::strong_count(&heard.disk.hangs);
    drop(half(&hub, 0, 0));
    eventually("it is written", LONG, || heard.disk.bytes.load(Ordering::Acquire) == 4);
    assert!(Arc::strong_count(&heard.disk.hangs) > before);
    heard.attempt.store(1, Ordering::Release);
    server.wake();
    eventually("HUB-15: it is gone", LONG, || Arc::strong_count(&heard.disk.hangs) == before);
}

#[test]
fn a_result_that_could_not_be_written_is_told_once_and_does_not_go_on() {
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    let hangs = heard.disk.hangs.lock().unwrap();
    heard.disk.is_full.store(true, Ordering::Release);
    // One whose connection is gone when the disk says so, and one whose isn't.
    drop(half(&hub, 0, 0));
    let mut stays = half(&hub, 1, 0);
    drop(hangs);
    let is_lost = |count| heard.lost.load(Ordering::Acquire) == count;
    eventually("both are told", LONG, || is_lost(2));
    heard.disk.is_full.store(false, Ordering::Release);
    stays.sender().send_frame(&Frame::Data(b"more"), soon()).unwrap();
    assert_eq!(stays.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released, "its rest is passed over");
    assert_eq!([0, 1].map(|rank| bring(&hub, rank, 0, 0).1), [0, 0], "HUB-15");
    assert!(is_lost(2));
}

#[test]
fn of_many_results_and_outputs_only_that_which_comes_again_ends_its_older_connection() {
    let heard = Heard::default();
    heard.takes_output.store(true, Ordering::Release);
    heard.attempt.store(1, Ordering::Release);
    let (_server, hub) = serve(&heard);
    let mut results: Vec<HubConnection> = (0..20).map(|rank| half(&hub, rank, 1)).collect();
    let logs = |partition| {
        HubConnection::open(&hub, Role::Logs { partition, attempt: Attempt::first(), instance: 0 }, soon())
            .unwrap()
    };
    let mut outputs: Vec<HubConnection> = (0..20).map(logs).collect();
    for again in [7, 13, 7] {
        let older =
            std::mem::replace(&mut results[again], half(&hub, again as u32, 1)).receive::<HubMessage>(soon());
        assert_eq!(older.unwrap_err().kind(), ErrorKind::Closed, "HUB-14");
        let older = std::mem::replace(&mut outputs[again], logs(again as u32)).receive::<HubMessage>(soon());
        assert_eq!(older.unwrap_err().kind(), ErrorKind::Closed, "HUB-14");
    }
    // What comes late of the attempt before is passed over and ends nothing, and what was ended before leaves no mark.
    let mut late = half(&hub, 3, 0);
    late.sender().send_frame(&Frame::Data(b"more"), soon()).unwrap();
    assert_eq!(late.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released);
    drop(results.remove(19));
    results.push(half(&hub, 19, 1));
    for result in &mut results {
        result.sender().send_frame(&Frame::Data(b"more"), soon()).unwrap();
        assert_eq!(result.receive::<HubMessage>(soon()).unwrap(), HubMessage::Released, "HUB-14");
    }
    for output in &mut outputs {
        output.send(&NodeMessage::Ping, soon()).unwrap();
        assert_eq!(output.receive::<HubMessage>(soon()).unwrap(), HubMessage::Pong, "HUB-14");
    }
}

/// Who comes second, third, ...
fn come(hub: &HubAddress, instance: u64) -> HubConnection {
    let task = SparkTask { instance, id: instance, ..SparkTask::default() };
    let role = Role::Control { partition: 0, attempt: Attempt::first(), task };
    HubConnection::open(hub, role, soon()).unwrap()
}

fn says(node: &mut HubConnection, order: &HubMessage) {
    assert_eq!(&node.receive::<HubMessage>(soon()).unwrap(), order);
}

fn joins(host: &str) -> NodeMessage {
    NodeMessage::Join(Join { host: host.into(), ..join_of(0) })
}

#[test]
fn a_spare_waits_and_what_it_told_is_heard_when_it_gets_the_seat() {
    let heard = Heard::default();
    let (server, hub) = serve(&heard);
    let mut first = come(&hub, 1);
    let mut spares = [come(&hub, 2), come(&hub, 3)];
    for (nth, spare) in spares.iter_mut().enumerate() {
        says(spare, &HubMessage::Spare);
        spare.send(&joins(&format!("spare {nth}")), soon()).unwrap();
        spare.send(&NodeMessage::Ping, soon()).unwrap();
        says(spare, &HubMessage::Pong);
    }
    first.send(&joins("first"), soon()).unwrap();
    says(&mut first, &HubMessage::Pong);
    assert_eq!(*heard.told.lock().unwrap(), [joins("first")], "HUB-22");

    *heard.holder.lock().unwrap() = None;
    heard.seats.fetch_add(1, Ordering::AcqRel);
    server.wake();
    let [second, third] = &mut spares;
    says(third, &HubMessage::Pong);
    assert_eq!(*heard.told.lock().unwrap(), [joins("first"), joins("spare 1")], "HUB-22: the newest first");
    // Who had the seat is gone, and the other waits on.
    assert!(first.receive::<HubMessage>(soon()).is_err());
    second.send(&NodeMessage::Ping, soon()).unwrap();
    says(second, &HubMessage::Pong);
}

#[test]
fn a_spare_that_leaves_or_waits_in_vain_is_let_go() {
    let heard = Heard::default();
    let (server, hub) = serve(&heard);
    let _first = come(&hub, 1);
    let (mut leaves, mut waits) = (come(&hub, 2), come(&hub, 3));
    says(&mut leaves, &HubMessage::Spare);
    says(&mut waits, &HubMessage::Spare);
    let done = NodeMessage::Done { problem: None, interrupted: Some("killed".into()), output: Vec::new() };
    leaves.send(&done, soon()).unwrap();
    says(&mut leaves, &HubMessage::Released);
    heard.is_over.store(true, Ordering::Release);
    heard.seats.fetch_add(1, Ordering::AcqRel);
    server.wake();
    says(&mut waits, &HubMessage::Stop { reason: "enough".into() });
    waits.send(&done, soon()).unwrap();
    says(&mut waits, &HubMessage::Released);
    // One that comes now hears both at once.
    let mut late = come(&hub, 4);
    says(&mut late, &HubMessage::Spare);
    says(&mut late, &HubMessage::Stop { reason: "enough".into() });
    assert_eq!(*heard.told.lock().unwrap(), [], "HUB-22");
}

#[test]
fn a_spare_that_has_ranks_is_to_end_them_and_fail() {
    let heard = Heard::default();
    let (_server, hub) = serve(&heard);
    let _first = come(&hub, 1);
    let mut spare = come(&hub, 2);
    says(&mut spare, &HubMessage::Spare);
    spare.send(&NodeMessage::RankStarted { rank: 0, pid: 1, age_us: 0 }, soon()).unwrap();
    says(&mut spare, &HubMessage::GivenUp { reason: "another task has its seat".into() });
    (0..100).for_each(|_| spare.send(&joins("it"), soon()).unwrap());
    spare.send(&NodeMessage::Ping, soon()).unwrap();
    says(&mut spare, &HubMessage::Pong);
    assert_eq!(*heard.told.lock().unwrap(), [], "HUB-22");
}

#[test]
fn a_spare_that_comes_over_another_connection_has_that_one_alone() {
    let heard = Heard::default();
    let (server, hub) = serve(&heard);
    let _first = come(&hub, 1);
    let (mut before, mut now) = (come(&hub, 2), come(&hub, 2));
    says(&mut before, &HubMessage::Spare);
    assert!(before.receive::<HubMessage>(soon()).is_err(), "HUB-22");
    says(&mut now, &HubMessage::Spare);
    // It comes once more, and has the seat at once.
    *heard.holder.lock().unwrap() = None;
    let mut seated = come(&hub, 2);
    assert!(now.receive::<HubMessage>(soon()).is_err(), "HUB-22");
    heard.seats.fetch_add(1, Ordering::AcqRel);
    server.wake();
    seated.send(&NodeMessage::Ping, soon()).unwrap();
    says(&mut seated, &HubMessage::Pong);
}
