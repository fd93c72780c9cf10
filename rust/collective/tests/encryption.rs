//! Groups whose hosts are connected by TLS, and somebody on the way: GROUP-10, GROUP-11, GROUP-44, GROUP-58, GROUP-59,
//! GROUP-60.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use common::links::{Links, Speed};
use common::{LONG, key, options, program, world_with};
use phalanx_collective::{Group, GroupOptions, HashStore, ReduceOp, Store};
use phalanx_io::{Identity, TlsChannel, TlsServer};
use phalanx_testkit::leaks;
use phalanx_types::{Deadline, Error, ErrorKind, Result};

/// What is looked for on the way: long enough that no other bytes are the same by chance.
const LETTER: &[u8] = b"a tensor that nobody else is to see";

/// As one of several hosts, with a rank each.
fn apart(options: GroupOptions) -> GroupOptions {
    GroupOptions { pretended_host: Some(options.rank as u32), encryption: true, ..options }
}

/// Two ranks, which meet through `store`.
fn two<T: Send>(
    stores: [&mut (dyn Store + Send); 2],
    change: impl Fn(GroupOptions) -> GroupOptions + Sync,
    run: impl Fn(Result<Group>) -> T + Sync,
) -> [T; 2] {
    let (change, run) = (&change, &run);
    std::thread::scope(|scope| {
        let mut rank = 0..;
        stores
            .map(|store| {
                let rank = rank.next().unwrap();
                scope.spawn(move || run(Group::join(change(options(rank, 2)), store)))
            })
            .map(|rank| rank.join().unwrap())
    })
}

fn over<T: Send>(links: &Links, encryption: bool, run: impl Fn(Group) -> T + Sync) -> [T; 2] {
    let (mut one, mut other) = (links.through(0), links.through(1));
    let change = |options| GroupOptions { encryption, ..apart(options) };
    two([&mut one, &mut other], change, |group| run(group.unwrap()))
}

#[test]
fn programs_give_the_same_among_hosts_that_encrypt() {
    let _leaks = leaks();
    for (ranks, hosts) in [(2, 2), (3, 3), (5, 2)] {
        let on_hosts = |options: GroupOptions| GroupOptions {
            pretended_host: Some((options.rank % hosts) as u32),
            encryption: true,
            ..options
        };
        world_with(ranks, on_hosts, |group| program::run(group, 11, 25));
    }
}

#[test]
fn sixty_four_mebibytes_are_reduced_while_both_ranks_send_each_other_messages() {
    // GROUP-59: far more than any buffer on the way holds, both ways at once.
    let _leaks = leaks();
    world_with(2, apart, |group| {
        let other = 1 - group.rank();
        group.send(&vec![group.rank() as u8; 5_000_000], other, 1).unwrap();
        let mut numbers: Vec<f32> = (0..16 << 20).map(|at| (at % 1000 + group.rank()) as f32).collect();
        group.all_reduce_of(&mut numbers, ReduceOp::Sum).unwrap();
        assert!(numbers.iter().enumerate().all(|(at, number)| *number == (2 * (at % 1000) + 1) as f32));
        let mut message = vec![9; 5_000_000];
        group.recv(&mut message, Some(other), 1).unwrap();
        assert!(message.iter().all(|byte| usize::from(*byte) == other));
    });
}

#[test]
fn who_reads_along_sees_nothing_of_what_ranks_send() {
    // GROUP-58. Without encryption the same eyes see it.
    let _leaks = leaks();
    for encryption in [false, true] {
        let links = Links::watched();
        over(&links, encryption, |mut group| {
            let mut letter = if group.rank() == 0 { LETTER.to_vec() } else { vec![0; LETTER.len()] };
            group.broadcast_of(&mut letter, 0).unwrap();
            assert_eq!(letter, LETTER);
            let mut message: Vec<u8> = LETTER.iter().rev().copied().collect();
            group.send(&message.clone(), 1 - group.rank(), 0).unwrap();
            group.recv(&mut message, None, 0).unwrap();
        });
        let backwards: Vec<u8> = LETTER.iter().rev().copied().collect();
        assert_eq!([links.saw(LETTER), links.saw(&backwards)], [!encryption; 2], "GROUP-58");
        assert!(!links.saw(b"PHXCOLL") || !encryption, "GROUP-58");
        links.end();
    }
}

#[test]
fn a_bit_that_is_changed_on_the_way_ends_in_an_error_that_names_the_peer() {
    // GROUP-60
    let _leaks = leaks();
    for after in [1, 100, 20_000, 1_500_001] {
        let links = Links::new(Speed::default());
        let both_are_out = Barrier::new(2);
        let errors = over(&links, true, |mut group| {
            group.barrier().unwrap();
            both_are_out.wait();
            group.set_timeout(Duration::from_secs(3));
            if group.rank() == 0 {
                links.change_after(after);
            }
            let mut numbers = vec![1.0f32; 1_000_000];
            let error = loop {
                // What a record's header says of its type and version changes nothing.
                match group.all_reduce_of(&mut numbers, ReduceOp::Average) {
                    Ok(()) => assert!(numbers.iter().all(|number| *number == 1.0), "GROUP-60"),
                    Err(error) => break error,
                }
                if group.rank() == 0 {
                    links.change_after(after);
                }
            };
            (group.rank(), error)
        });
        for (rank, error) in errors {
            let said = error.to_string();
            let named = said.contains(&format!("rank {}", 1 - rank));
            // The last, where the bit was one of a handshake: a second connection is opened for the long sum.
            let kinds = [ErrorKind::PeerLost, ErrorKind::Timeout, ErrorKind::Protocol];
            assert!(named && kinds.contains(&error.kind()), "{said}");
        }
        links.end();
    }
}

/// A store by which a rank finds another one at an address of somebody else's.
struct Misled {
    store: HashStore,
    to: SocketAddr,
}

impl Store for Misled {
    fn set(&mut self, place: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.store.set(place, value, deadline)
    }

    fn get(&mut self, place: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let value = self.store.get(place, deadline)?;
        if place != "world/cards" {
            return Ok(value);
        }
        // As the network would do it, without the group's key.
        let group = key().of_group("world");
        let mut cards: serde_json::Value =
            serde_json::from_slice(group.open(place, &value).unwrap()).unwrap();
        cards["all"][0]["address"] = self.to.to_string().into();
        Ok(group.seal(place, &serde_json::to_vec(&cards).unwrap()))
    }
}

/// Somebody whom rank 1 takes for rank 0; what the two ranks come to.
fn in_the_middle(timeout: Duration, answer: impl FnOnce(TcpStream) + Send) -> [Error; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut one, to) = (HashStore::default(), listener.local_addr().unwrap());
    let mut other = Misled { store: one.clone(), to };
    std::thread::scope(|scope| {
        // Whoever connects again waits for an answer.
        scope.spawn(|| answer(listener.accept().unwrap().0));
        let change = |options| GroupOptions { timeout, ..apart(options) };
        two([&mut one, &mut other], change, |group| group.err().unwrap())
    })
}

/// One end of TLS over a socket, until the peer has gone; what it said.
fn speak(mut socket: TcpStream, mut tls: TlsChannel) -> Vec<u8> {
    let (mut heard, mut wire, mut came) = (Vec::new(), Vec::new(), [0; 4096]);
    socket.set_read_timeout(Some(LONG)).unwrap();
    while let Ok(count @ 1..) = socket.read(&mut came) {
        let received = tls.receive(&came[..count], |said| heard.extend_from_slice(said));
        tls.drain(&mut wire).unwrap();
        let _ = socket.write_all(&wire);
        wire.clear();
        if received.is_err() {
            break;
        }
    }
    heard
}

#[test]
fn who_answers_in_a_ranks_place_with_a_key_of_his_own_is_refused_and_told_nothing() {
    // GROUP-10
    let _leaks = leaks();
    let heard = Mutex::new(None);
    let [late, refused] = in_the_middle(Duration::from_secs(2), |socket| {
        let mine = Identity::new().unwrap();
        let tls = TlsServer::new(&mine, "phalanx-collective/3").unwrap().accept().unwrap();
        *heard.lock().unwrap() = Some(speak(socket, tls));
    });
    assert_eq!(refused.kind(), ErrorKind::Refused, "GROUP-10: {refused}");
    let said = refused.to_string();
    let sentence = "its key is not the expected one";
    assert!(said.starts_with("rank 1: rank 0 at 127.0.0.1:") && said.ends_with(sentence), "{said}");
    assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    assert_eq!(heard.into_inner().unwrap().as_deref(), Some(&b""[..]), "GROUP-10");
}

#[test]
fn who_answers_in_a_ranks_place_without_encryption_is_refused() {
    // GROUP-10: nobody is talked down to what can be read.
    let _leaks = leaks();
    let [_, refused] = in_the_middle(Duration::from_secs(2), |mut socket| {
        let _ = socket.write_all(&[7; 64]);
        let mut first = [0; 8];
        socket.read_exact(&mut first).unwrap();
        assert_ne!(&first, b"PHXCOLL1", "GROUP-58");
        let _ = socket.read_to_end(&mut Vec::new());
    });
    assert!(refused.to_string().ends_with("it doesn't speak TLS"), "{refused}");
}

#[test]
fn who_breaks_tls_off_in_a_ranks_place_is_named_and_not_asked_again() {
    // GROUP-11
    let _leaks = leaks();
    let [_, refused] = in_the_middle(Duration::from_secs(2), |mut socket| {
        // A fatal alert, handshake_failure.
        let _ = socket.write_all(&[21, 3, 3, 0, 2, 2, 40]);
        let _ = socket.read_to_end(&mut Vec::new());
    });
    assert_eq!(refused.kind(), ErrorKind::Protocol, "GROUP-11: {refused}");
    assert!(refused.to_string().ends_with("it aborted TLS: HandshakeFailure"), "GROUP-11: {refused}");
}

#[test]
fn who_hangs_up_in_a_ranks_place_is_asked_again_and_the_deadline_tells_of_it() {
    let _leaks = leaks();
    let [_, late] = in_the_middle(Duration::from_secs(2), drop);
    assert_eq!(late.kind(), ErrorKind::Timeout, "GROUP-11: {late}");
    assert!(
        late.to_string().contains("; before that: can't agree on encryption"),
        "GROUP-11, GROUP-17: {late}"
    );
}

#[test]
fn who_speaks_tls_and_does_not_know_the_groups_key_is_refused_and_disturbs_nobody() {
    // GROUP-42. The key of TLS is no secret: it is on the store.
    let _leaks = leaks();
    let store = HashStore::default();
    std::thread::scope(|scope| {
        let join = |rank| {
            let mut store = store.clone();
            move || drop(Group::join(apart(options(rank, 2)), &mut store).unwrap())
        };
        let first = scope.spawn(join(0));
        let sealed = store.clone().get("world/card/0", Deadline::after(LONG)).unwrap();
        let open = key().of_group("world").open("world/card/0", &sealed).unwrap().to_vec();
        let card: serde_json::Value = serde_json::from_slice(&open).unwrap();
        let tls_key = hex::decode(card["tls_key"].as_str().unwrap()).unwrap();
        let address: SocketAddr = card["address"].as_str().unwrap().parse().unwrap();
        let mut tls = TlsChannel::connect(&tls_key, "phalanx-collective/3").unwrap();
        let mut socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(LONG)).unwrap();
        let (mut wire, mut heard, mut came) = (Vec::new(), Vec::new(), [0; 4096]);
        let (mut said, mut is_over) = (0, false);
        while !is_over {
            let hello = [&b"PHXCOLL1"[..], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[9; 32]].concat();
            if tls.is_ready() && said == 0 {
                tls.send(&hello, &mut wire).unwrap();
                said = 1;
            } else if said == 1 && heard.len() == 64 {
                tls.send(&[0; 32], &mut wire).unwrap();
                said = 2;
            }
            tls.drain(&mut wire).unwrap();
            is_over = socket.write_all(&wire).is_err();
            wire.clear();
            match socket.read(&mut came) {
                Ok(count @ 1..) => tls.receive(&came[..count], |some| heard.extend_from_slice(some)).unwrap(),
                ended => {
                    assert!(ended.is_ok_and(|count| count == 0) && said == 2, "GROUP-42");
                    is_over = true;
                }
            }
        }
        scope.spawn(join(1)).join().expect("GROUP-42");
        first.join().expect("GROUP-42");
    });
}

#[test]
fn ranks_of_which_only_one_encrypts_are_both_told_so() {
    let _leaks = leaks();
    for encrypting in 0..2 {
        let (mut one, mut other) = (HashStore::default(), HashStore::default());
        other.clone_from(&one);
        let change = |options: GroupOptions| GroupOptions {
            pretended_host: Some(options.rank as u32),
            encryption: options.rank == encrypting,
            ..options
        };
        for error in two([&mut one, &mut other], change, |group| group.err().unwrap()) {
            let sentence = format!(
                "rank {encrypting} encrypts what it sends to other hosts and rank {} doesn't",
                1 - encrypting
            );
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(&sentence), "{error}");
        }
    }
}
