//! A store that encrypts: what somebody on the way sees, who is let in, and that a connection through an entrance ends
//! as a direct one would.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use phalanx_io::Identity;
use phalanx_rendezvous::store::protocol::{Query, put_bytes, put_greeting, put_query};
use phalanx_rendezvous::store::{StoreClient, StoreEntrance, StoreServer};
use phalanx_testkit::eventually;
use phalanx_types::{Deadline, Key};

const PATIENCE: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A store that other nodes reach at `nodes`.
struct Store {
    server: StoreServer,
    nodes: SocketAddr,
    identity: Identity,
}

impl Store {
    fn serve() -> Store {
        let (identity, nodes) = (Identity::new().unwrap(), listen());
        let address = nodes.local_addr().unwrap();
        let server = StoreServer::start_secure(listen(), nodes, &identity, key(1)).unwrap();
        Store { server, nodes: address, identity }
    }

    fn entrance(&self, by_way_of: SocketAddr) -> StoreEntrance {
        StoreEntrance::start(listen(), by_way_of, self.identity.public_key().clone(), key(1)).unwrap()
    }
}

/// Somebody on the way, who sees all that passes, and can hold up what nodes send.
struct Middle {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<u8>>>,
    holds_up: Arc<AtomicBool>,
}

impl Middle {
    fn before(store: SocketAddr) -> Middle {
        let listener = listen();
        let middle = Middle {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            holds_up: Arc::default(),
        };
        let (seen, holds_up) = (Arc::clone(&middle.seen), Arc::clone(&middle.holds_up));
        // For as long as the test's process lives.
        thread::spawn(move || {
            for node in listener.incoming().map_while(Result::ok) {
                let there = TcpStream::connect(store).unwrap();
                let back = (there.try_clone().unwrap(), node.try_clone().unwrap());
                for ((from, to), held_up) in [((node, there), true), (back, false)] {
                    let (seen, holds_up) = (Arc::clone(&seen), Arc::clone(&holds_up));
                    thread::spawn(move || pass(&from, &to, &seen, held_up.then_some(&*holds_up)));
                }
            }
        });
        middle
    }

    fn has_seen(&self, text: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(text.len()).any(|window| window == text)
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, seen: &Mutex<Vec<u8>>, holds_up: Option<&AtomicBool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen.lock().unwrap().extend_from_slice(&buffer[..count]);
        while holds_up.is_some_and(|holds_up| holds_up.load(Ordering::Acquire)) {
            thread::park();
        }
        if to.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn who_is_on_the_way_sees_nothing_of_what_ranks_say() {
    let store = Store::serve();
    let middle = Middle::before(store.nodes);
    let entrance = store.entrance(middle.address);
    let value: Vec<u8> = (0..4 << 20).map(|i: u32| (i % 251) as u8).collect();
    let mut rank = StoreClient::connect(entrance.address(), soon()).unwrap();
    rank.set("a-name-of-a-key", b"what-nobody-may-see", soon()).unwrap();
    rank.set("large", &value, soon()).unwrap();
    // A rank of the store's own host, which is not on the way.
    let mut inside = StoreClient::connect(store.server.address(), soon()).unwrap();
    assert_eq!(inside.get("a-name-of-a-key", soon()).unwrap(), b"what-nobody-may-see");
    assert_eq!(inside.get("large", soon()).unwrap(), value);
    assert_eq!(rank.get("large", soon()).unwrap(), value);
    assert!(middle.seen.lock().unwrap().len() > 2 * value.len());
    for word in [&b"a-name-of-a-key"[..], b"what-nobody-may-see", &value[..32]] {
        assert!(!middle.has_seen(word), "STORE-10");
    }
}

#[test]
fn a_stranger_is_not_served_and_disturbs_nobody() {
    let store = Store::serve();
    let entrance = store.entrance(store.nodes);
    let mut rank = StoreClient::connect(entrance.address(), soon()).unwrap();
    let plain = StoreClient::connect(store.nodes, soon()).unwrap_err();
    assert!(!plain.to_string().is_empty(), "STORE-10");
    let public = store.identity.public_key().clone();
    let stranger = StoreEntrance::start(listen(), store.nodes, public, key(2)).unwrap();
    assert!(StoreClient::connect(stranger.address(), soon()).is_err(), "STORE-10: it has another key");
    let other = Identity::new().unwrap().public_key().clone();
    let misled = StoreEntrance::start(listen(), store.nodes, other, key(1)).unwrap();
    assert!(StoreClient::connect(misled.address(), soon()).is_err(), "a store that isn't the job's");
    assert_eq!(rank.add("n", 1, soon()).unwrap(), 1);
}

/// A shell of another user that connects to `address`, says `bytes` there, and goes on with `then`.
fn shell_of(user: u32, address: SocketAddr, bytes: &[u8], then: &str) -> Command {
    let bytes: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let port = address.port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{bytes}' >&3; {then}");
    let mut command = Command::new("bash");
    command.args(["-c", &script]).uid(user).stderr(Stdio::null()).stdin(Stdio::null());
    command
}

/// What another user's process hears when it greets the store at `address`.
fn heard_by(user: u32, address: SocketAddr) -> Vec<u8> {
    let mut greeting = Vec::new();
    put_greeting(&mut greeting, 7);
    let then = "IFS= read -t 20 -r -N 1 -u 3 a; printf '%s' \"$a\"";
    shell_of(user, address, &greeting, then).output().unwrap().stdout
}

#[test]
fn a_process_of_another_user_is_let_in_nowhere() {
    let own = rustix::process::geteuid().as_raw();
    let store = Store::serve();
    let entrance = store.entrance(store.nodes);
    for (door, rule) in [(store.server.address(), "STORE-10"), (entrance.address(), "STORE-1")] {
        assert_eq!(heard_by(own, door), [7], "{rule}: this user's processes are served");
        if own == 0 {
            assert!(heard_by(NOBODY, door).is_empty(), "{rule}");
        }
    }
}

#[test]
fn what_another_user_left_before_he_went_is_not_heard() {
    if !rustix::process::geteuid().is_root() {
        return; // Nobody else can be made a user.
    }
    let (waiting, behind) = (listen(), listen());
    let mut said = Vec::new();
    put_greeting(&mut said, 7);
    put_query(&mut said, Query::Set, b"/left");
    put_bytes(&mut said, b"by a stranger");
    for door in [&waiting, &behind] {
        assert!(shell_of(NOBODY, door.local_addr().unwrap(), &said, "").status().unwrap().success());
    }
    // Both doors open when the kernel has forgotten whose these connections were.
    let seen_by = |list: &str| std::fs::read_to_string(list).unwrap();
    let port = format!(":{:04X} 05 ", behind.local_addr().unwrap().port());
    eventually("the last end is nobody's", PATIENCE, || seen_by("/proc/net/tcp").contains(&port));
    let (identity, nodes) = (Identity::new().unwrap(), listen());
    let outside = nodes.local_addr().unwrap();
    let server = StoreServer::start_secure(waiting, nodes, &identity, key(1)).unwrap();
    let public = identity.public_key().clone();
    let entrance = StoreEntrance::start(behind, outside, public, key(1)).unwrap();
    for (address, rule) in [(server.address(), "STORE-10"), (entrance.address(), "STORE-1")] {
        let mut rank = StoreClient::connect(address, soon()).unwrap();
        assert!(!rank.check(&["left"], soon()).unwrap(), "{rule}");
    }
}

#[test]
fn an_end_in_one_direction_leaves_the_other_open() {
    let store = Store::serve();
    let entrance = store.entrance(store.nodes);
    // More than the store keeps for a client before it lets its requests wait.
    let value = vec![5; 8 << 20];
    let mut inside = StoreClient::connect(store.server.address(), soon()).unwrap();
    inside.set("v", &value, soon()).unwrap();
    inside.wait(&["v"], soon()).unwrap();
    for (address, name) in [(store.server.address(), "direct"), (entrance.address(), "through")] {
        let mut rank = TcpStream::connect(address).unwrap();
        rank.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut said = Vec::new();
        put_greeting(&mut said, 7);
        put_query(&mut said, Query::Get, b"/v");
        put_query(&mut said, Query::Set, format!("/{name}").as_bytes());
        put_bytes(&mut said, b"said");
        rank.write_all(&said).unwrap();
        rank.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        rank.read_to_end(&mut heard).unwrap();
        assert!(heard.ends_with(&value), "STORE-2: {name}, {} bytes came", heard.len());
        assert!(inside.check(&[name], soon()).unwrap(), "STORE-2: {name}");
    }
}

#[test]
fn who_does_not_read_is_not_read_from() {
    let store = Store::serve();
    let middle = Middle::before(store.nodes);
    let entrance = store.entrance(middle.address);
    let _proved = StoreClient::connect(entrance.address(), soon()).unwrap();
    let mut rank = TcpStream::connect(entrance.address()).unwrap();
    let mut greeting = Vec::new();
    put_greeting(&mut greeting, 7);
    rank.write_all(&greeting).unwrap();
    rank.read_exact(&mut [0; 4]).unwrap();
    middle.holds_up.store(true, Ordering::Release);
    rank.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let much = vec![0; 256 << 20];
    assert!(rank.write_all(&much).is_err(), "STORE-3: a socket's buffers take less");
}

#[test]
fn an_entrance_that_stops_leaves_nothing_and_ranks_see_the_end() {
    let store = Store::serve();
    let entrance = store.entrance(store.nodes);
    let address = entrance.address();
    let mut rank = StoreClient::connect(address, soon()).unwrap();
    entrance.stop();
    assert!(rank.check(&["a"], soon()).is_err(), "STORE-4");
    // A process that another test starts has the socket, too, until it is another program.
    eventually("STORE-4: the port is free", PATIENCE, || TcpListener::bind(address).is_ok());
    let second = store.entrance(store.nodes);
    let mut rank = StoreClient::connect(second.address(), soon()).unwrap();
    store.server.stop();
    assert!(rank.check(&["a"], soon()).is_err(), "STORE-2: a store that is gone is gone for its ranks");
}

#[test]
fn a_store_that_is_not_there_is_an_end_and_one_that_begins_late_is_waited_for() {
    let gone = listen().local_addr().unwrap();
    let (identity, nodes) = (Identity::new().unwrap(), listen());
    let public = identity.public_key().clone();
    let nowhere = StoreEntrance::start(listen(), gone, public.clone(), key(1)).unwrap();
    assert!(StoreClient::connect(nowhere.address(), soon()).is_err());
    let early = StoreEntrance::start(listen(), nodes.local_addr().unwrap(), public, key(1)).unwrap();
    let address = early.address();
    let rank = thread::spawn(move || StoreClient::connect(address, soon()).map(drop));
    // The listener has the connection, and the store begins when its node does.
    let _server = StoreServer::start_secure(listen(), nodes, &identity, key(1)).unwrap();
    rank.join().unwrap().unwrap();
}
