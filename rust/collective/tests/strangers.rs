//! Strangers at a group's doors and on its store: GROUP-7, GROUP-8, GROUP-9, GROUP-12, GROUP-1, GROUP-42.
#![allow(clippy::unwrap_used, reason = "for tests")]

mod common;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixStream};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use common::{LONG, key, options, world_with};
use phalanx_collective::{Group, GroupOptions, HashStore, ReduceOp, Store};
use phalanx_testkit::leaks;
use phalanx_types::{Deadline, ErrorKind, Generation, Key, Result};

/// More than one thread could hear out in the time that a group has here, at a second or two for each.
const MANY: usize = 300;

/// A key and its value.
type Pair = (String, Vec<u8>);

/// A store whose values somebody reads along.
#[derive(Clone, Default)]
struct Watched {
    store: HashStore,
    seen: Arc<Mutex<Vec<Pair>>>,
}

impl Store for Watched {
    fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.seen.lock().unwrap().push((key.into(), value.into()));
        self.store.set(key, value, deadline)
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.store.get(key, deadline)
    }
}

fn sums(group: &mut Group) {
    let mut sum = [1.5f32];
    group.all_reduce_of(&mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum, [1.5 * group.world_size() as f32]);
}

#[test]
fn the_ranks_of_a_job_leave_no_secret_on_the_store() {
    let store = Watched::default();
    let _leaks = leaks();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let mut store = store.clone();
            scope.spawn(move || sums(&mut Group::join(options(rank, 2), &mut store).unwrap()));
        }
    });
    let secrets = [key(), key().of_group("world")];
    for (place, value) in &*store.seen.lock().unwrap() {
        let tells = |secret: &Key| value.windows(32).any(|bytes| bytes == secret.bytes());
        assert!(!place.contains("secret") && !secrets.iter().any(tells), "GROUP-9: {place}");
    }
}

#[test]
fn outside_a_job_a_group_meets_by_a_secret_of_the_store() {
    world_with(2, |options| GroupOptions { key: None, ..options }, sums);
}

#[test]
fn who_can_write_to_the_store_but_has_not_the_key_can_not_join() {
    let _leaks = leaks();
    // The key of another generation, and none.
    for other in [Some(Key::of_groups(&[7; 32], "tests", Generation::new(1))), None] {
        let store = HashStore::default();
        std::thread::scope(|scope| {
            let mut theirs = store.clone();
            let short = Duration::from_secs(1);
            // As another host, by encrypted connections: it's not by these that a rank is known.
            let apart = |options: GroupOptions| GroupOptions {
                pretended_host: Some(options.rank as u32),
                encryption: true,
                timeout: short,
                ..options
            };
            let intruder = apart(GroupOptions { key: other, ..options(1, 2) });
            let intruder = scope.spawn(move || Group::join(intruder, &mut theirs).err().unwrap());
            let joined = Group::join(apart(options(0, 2)), &mut store.clone());
            let kind = joined.err().unwrap().kind();
            let kinds = [kind, intruder.join().unwrap().kind()];
            assert!(
                kinds.iter().all(|kind| [ErrorKind::Refused, ErrorKind::Timeout].contains(kind)),
                "GROUP-8: {kinds:?}"
            );
        });
    }
}

#[test]
fn strangers_that_are_silent_or_slow_or_very_many_keep_no_rank_waiting() {
    let _leaks = leaks();
    // As ranks of one host, and of two, which may encrypt.
    for (hosts, encryption) in
        [([None, None], false), ([Some(0), Some(1)], false), ([Some(0), Some(1)], true)]
    {
        let (store, crowded) = (HashStore::default(), Barrier::new(3));
        std::thread::scope(|scope| {
            let crowded = &crowded;
            let join = |rank: usize| {
                let mut store = store.clone();
                let timeout = Duration::from_secs(20);
                let pretended_host = hosts[rank];
                let options = GroupOptions { pretended_host, timeout, encryption, ..options(rank, 2) };
                move || {
                    let mut group = Group::join(options, &mut store).unwrap();
                    crowded.wait();
                    // They come again when the group has formed.
                    crowded.wait();
                    sums(&mut group);
                    let mut message = [rank as u8];
                    group.send(&message.clone(), 1 - rank, 0).unwrap();
                    group.recv(&mut message, Some(1 - rank), 0).unwrap();
                    assert_eq!(message, [1 - rank as u8]);
                    crowded.wait();
                }
            };
            let first = scope.spawn(join(0));
            let group = key().of_group("world");
            let read = |place: &str| -> serde_json::Value {
                let sealed = store.clone().get(place, Deadline::after(LONG)).unwrap();
                serde_json::from_slice(group.open(place, &sealed).unwrap()).unwrap()
            };
            let address: SocketAddr = read("world/card/0")["address"].as_str().unwrap().parse().unwrap();
            // GROUP-12: by a key that strangers don't have.
            let meeting = read("world/meeting");
            let host = hosts[0].map_or_else(String::new, |host| host.to_string());
            let name = group.of_group(&format!("socket {} {host} 0", meeting.as_str().unwrap()));
            let name = format!("phalanx-{}", hex::encode(&name.bytes()[..16]));
            let socket = UnixAddr::from_abstract_name(name).unwrap();
            let crowd =
                || -> Vec<TcpStream> { (0..MANY).map(|_| TcpStream::connect(address).unwrap()).collect() };
            let tcp = crowd();
            let unix: Vec<UnixStream> =
                (0..MANY).map(|_| UnixStream::connect_addr(&socket).unwrap()).collect();
            (&tcp[MANY - 1]).write_all(&[b'x'; 200]).unwrap();
            (&tcp[MANY - 2]).write_all(b"P").unwrap();
            (&unix[MANY - 2]).write_all(b"P").unwrap();
            if encryption {
                // Begins TLS, and goes no further.
                (&tcp[MANY - 3]).write_all(&[0x16, 3, 1, 2, 0, 1, 0, 1]).unwrap();
            }
            let second = scope.spawn(join(1));
            crowded.wait();
            // What is wrong is said at the end: until then others wait here.
            let (start, mut is_closed) = (Instant::now(), false);
            while !is_closed && start.elapsed() < LONG {
                is_closed = UnixStream::connect_addr(&socket).is_err();
            }
            // Nobody comes to a group of one host any more.
            let is_one = hosts == [None; 2];
            let is_closed = is_closed && (!is_one || TcpStream::connect(address).is_err());
            let more = if is_one { Vec::new() } else { crowd() };
            more.first().map(|mut one| one.write_all(&[b'x'; 200]));
            crowded.wait();
            crowded.wait();
            assert!(is_closed, "GROUP-7");
            second.join().expect("GROUP-1, GROUP-42");
            first.join().expect("GROUP-1, GROUP-42");
            drop((tcp, unix, more));
        });
    }
}
