//! The store over real sockets: what it promises its clients, and that no client can spoil it for the others.
#![allow(clippy::unwrap_used)]

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use phalanx_rendezvous::store::protocol::{
    MAX_VALUE_BYTES, Query, put_bytes, put_greeting, put_list, put_query,
};
use phalanx_rendezvous::store::{StoreClient, StoreServer};
use phalanx_types::{Deadline, ErrorKind, Network};

const PATIENCE: Duration = Duration::from_secs(30);

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

fn serve(allowed: Option<Vec<Network>>) -> StoreServer {
    StoreServer::start(TcpListener::bind("127.0.0.1:0").unwrap(), allowed).unwrap()
}

fn client(server: &StoreServer) -> StoreClient {
    StoreClient::connect(server.address(), soon()).unwrap()
}

/// A socket that has been greeted, for messages that [`StoreClient`] wouldn't send.
fn raw(server: &StoreServer) -> TcpStream {
    let mut stream = silent(server);
    let mut greeting = Vec::new();
    put_greeting(&mut greeting, 7);
    stream.write_all(&greeting).unwrap();
    assert_eq!(answer::<4>(&mut stream), 7_u32.to_le_bytes());
    stream
}

/// A socket that hasn't said anything.
fn silent(server: &StoreServer) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn answer<const N: usize>(stream: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
    }
}

fn assert_serves(server: &StoreServer) {
    let mut client = client(server);
    client.set("alive", b"yes", soon()).unwrap();
    assert_eq!(client.get("alive", soon()).unwrap(), b"yes");
}

/// Runs a test with a deadline, so that a hang is a failure.
fn within_deadline(test: impl FnOnce() + Send + 'static) {
    let (tell, told) = mpsc::channel();
    let runner = thread::spawn(move || {
        test();
        tell.send(()).unwrap();
    });
    match told.recv_timeout(2 * PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the test hangs"),
        _ => runner.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

#[test]
fn two_clients_see_one_store() {
    within_deadline(|| {
        let server = serve(None);
        let (mut one, mut two) = (client(&server), client(&server));
        one.set("k", b"v", soon()).unwrap();
        assert_eq!(two.get("k", soon()).unwrap(), b"v");
        assert_eq!(one.add("n", 40, soon()).unwrap(), 40);
        assert_eq!(two.add("n", 2, soon()).unwrap(), 42);
        assert_eq!(one.get("n", soon()).unwrap(), b"42");
        assert!(two.check(&["k", "n"], soon()).unwrap());
        assert!(!two.check(&["k", "missing"], soon()).unwrap());
        assert_eq!(one.compare_set("k", b"v", b"w", soon()).unwrap(), b"w");
        assert_eq!(two.compare_set("k", b"v", b"x", soon()).unwrap(), b"w");
        assert!(two.delete("k", soon()).unwrap());
        assert!(!one.delete("k", soon()).unwrap());
        assert_eq!(one.compare_set("k", b"never had it", b"x", soon()).unwrap(), b"never had it");
        assert!(!one.check(&["k"], soon()).unwrap());
    });
}

#[test]
fn a_get_waits_for_another_client_to_set_the_key() {
    within_deadline(|| {
        let server = serve(None);
        let address = server.address();
        let waiter = thread::spawn(move || {
            let mut client = StoreClient::connect(address, soon()).unwrap();
            client.add("waiting", 1, soon()).unwrap();
            client.get("late", soon()).unwrap()
        });
        let mut setter = client(&server);
        setter.wait(&["waiting"], soon()).unwrap();
        setter.set("late", b"here", soon()).unwrap();
        assert_eq!(waiter.join().unwrap(), b"here");
    });
}

#[test]
fn a_wait_that_times_out_leaves_the_connection_in_step() {
    within_deadline(|| {
        let server = serve(None);
        let mut client = client(&server);
        for patience in [Duration::ZERO, Duration::from_millis(10)] {
            let error = client.wait(&["a", "b", "c", "never"], Deadline::after(patience)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        let error = client.get("never", Deadline::after(Duration::from_millis(10))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("never"), "{error}");
        client.set("never", b"after all", soon()).unwrap();
        assert_eq!(client.get("never", soon()).unwrap(), b"after all");
    });
}

#[test]
fn a_client_that_waits_may_ask_for_other_things_meanwhile() {
    within_deadline(|| {
        let server = serve(None);
        let mut stream = raw(&server);
        let mut message = Vec::new();
        put_list(&mut message, Query::Wait, &["/a"]);
        put_list(&mut message, Query::Wait, &["/b"]);
        message.push(Query::NumKeys as u8);
        stream.write_all(&message).unwrap();
        assert_eq!(answer(&mut stream), 0_i64.to_le_bytes());
        let mut other = client(&server);
        other.set("b", b"", soon()).unwrap();
        assert_eq!(answer(&mut stream), [0]);
        other.set("a", b"", soon()).unwrap();
        assert_eq!(answer(&mut stream), [0]);
    });
}

#[test]
fn requests_may_come_in_one_packet_or_byte_by_byte() {
    within_deadline(|| {
        let server = serve(None);
        let mut message = Vec::new();
        put_query(&mut message, Query::Set, b"/k");
        put_bytes(&mut message, b"v");
        put_list(&mut message, Query::MultiGet, &["/k", "/none", "/k"]);
        put_query(&mut message, Query::QueueLen, b"/q");
        let mut expected = Vec::new();
        for value in [&b"v"[..], b"", b"v"] {
            put_bytes(&mut expected, value);
        }
        expected.extend(0_i64.to_le_bytes());
        for piece in [1, 7, message.len()] {
            let mut stream = raw(&server);
            stream.set_nodelay(true).unwrap();
            for bytes in message.chunks(piece) {
                stream.write_all(bytes).unwrap();
            }
            let mut reply = vec![0; expected.len()];
            stream.read_exact(&mut reply).unwrap();
            assert_eq!(reply, expected);
        }
    });
}

#[test]
fn the_largest_value_passes_and_a_larger_one_closes_its_connection() {
    within_deadline(|| {
        let server = serve(None);
        let mut client = client(&server);
        let value: Vec<u8> = (0..MAX_VALUE_BYTES).map(|at| (at % 251) as u8).collect();
        client.set("big", &value, soon()).unwrap();
        assert!(client.get("big", soon()).unwrap() == value);
        let error = client.set("bigger", &[0; MAX_VALUE_BYTES + 1], soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);

        let mut stream = raw(&server);
        let mut message = Vec::new();
        put_query(&mut message, Query::Set, b"/bigger");
        message.extend((MAX_VALUE_BYTES as u64 + 1).to_le_bytes());
        stream.write_all(&message).unwrap();
        assert!(is_closed(&mut stream));
        assert!(!client.check(&["bigger"], soon()).unwrap());
    });
}

#[test]
fn a_multi_set_may_be_longer_than_any_buffer() {
    within_deadline(|| {
        let server = serve(None);
        let mut stream = raw(&server);
        let value = vec![5; MAX_VALUE_BYTES];
        let mut message = vec![Query::MultiSet as u8];
        message.extend(6_u64.to_le_bytes());
        stream.write_all(&message).unwrap();
        for number in 0..6 {
            message.clear();
            put_bytes(&mut message, format!("/{number}").as_bytes());
            put_bytes(&mut message, &value);
            stream.write_all(&message).unwrap();
        }
        stream.write_all(&[Query::NumKeys as u8]).unwrap();
        assert_eq!(answer(&mut stream), 6_i64.to_le_bytes());
    });
}

/// STORE-6.
#[test]
fn half_a_request_and_silence_disturb_nobody() {
    within_deadline(|| {
        let server = serve(None);
        let silent = silent(&server);
        let mut half = raw(&server);
        half.write_all(&[Query::Set as u8, 200]).unwrap();
        let mut half_closed = raw(&server);
        half_closed.write_all(&[Query::NumKeys as u8]).unwrap();
        half_closed.shutdown(Shutdown::Write).unwrap();
        assert_serves(&server);
        // What was asked before the end is answered before the end.
        let mut reply = Vec::new();
        half_closed.read_to_end(&mut reply).unwrap();
        assert_eq!(reply.len(), 8);
        drop((silent, half));
        assert_serves(&server);
    });
}

/// STORE-6.
#[test]
fn garbage_closes_its_own_connection_only() {
    within_deadline(|| {
        let server = serve(None);
        let mut waiting = raw(&server);
        let mut wait = Vec::new();
        put_list(&mut wait, Query::Wait, &["/k"]);
        waiting.write_all(&wait).unwrap();
        let mut http = silent(&server);
        http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(is_closed(&mut http));
        let mut wrong_magic = silent(&server);
        wrong_magic.write_all(&[0, 1, 2, 3, 4]).unwrap();
        assert!(is_closed(&mut wrong_magic));
        let mut unknown_query = raw(&server);
        unknown_query.write_all(&[19]).unwrap();
        assert!(is_closed(&mut unknown_query));
        let mut no_number = raw(&server);
        let mut message = Vec::new();
        put_query(&mut message, Query::Set, b"/text");
        put_bytes(&mut message, b"x");
        put_query(&mut message, Query::Add, b"/text");
        message.extend(1_i64.to_le_bytes());
        no_number.write_all(&message).unwrap();
        assert!(is_closed(&mut no_number));
        client(&server).set("k", b"", soon()).unwrap();
        assert_eq!(answer(&mut waiting), [0]);
    });
}

/// STORE-6.
#[test]
fn a_client_that_never_reads_is_stalled_and_the_others_are_served() {
    within_deadline(|| {
        const GETS: usize = 192;
        let server = serve(None);
        let mut other = client(&server);
        let value = vec![3; MAX_VALUE_BYTES / 8];
        other.set("big", &value, soon()).unwrap();
        // A SET has no answer: another connection's requests may come before it.
        other.wait(&["big"], soon()).unwrap();
        let mut greedy = raw(&server);
        let mut message = Vec::new();
        put_query(&mut message, Query::Get, b"/big");
        greedy.write_all(&message.repeat(GETS)).unwrap();
        let mut set = Vec::new();
        put_query(&mut set, Query::Set, b"/the greedy one got this far");
        put_bytes(&mut set, b"");
        greedy.write_all(&set).unwrap();
        for _ in 0..50 {
            assert_eq!(other.get("big", soon()).unwrap().len(), value.len());
        }
        // 192 MiB don't fit into the sockets' buffers, so its last request can't have been looked at.
        assert!(!other.check(&["the greedy one got this far"], soon()).unwrap());
        let mut reply = vec![0; 8 + value.len()];
        for _ in 0..GETS {
            greedy.read_exact(&mut reply).unwrap();
            assert!(reply[8..] == value);
        }
        other.wait(&["the greedy one got this far"], soon()).unwrap();
    });
}

#[test]
fn a_waiter_that_is_gone_wakes_nobody_else_by_mistake() {
    within_deadline(|| {
        let server = serve(None);
        let mut wait = Vec::new();
        put_list(&mut wait, Query::Wait, &["/k"]);
        for _ in 0..100 {
            let mut gone = raw(&server);
            gone.write_all(&wait).unwrap();
        }
        let mut innocent = raw(&server);
        client(&server).set("k", b"", soon()).unwrap();
        innocent.write_all(&[Query::NumKeys as u8]).unwrap();
        let count = i64::from_le_bytes(answer(&mut innocent));
        assert!(count <= 1, "eight bytes of a number, not of others' wake-ups: {count}");
    });
}

/// A connection of this host that comes from another of its addresses.
fn from_elsewhere(server: &StoreServer) -> TcpStream {
    let foreign = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    foreign.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    foreign.connect(&server.address().into()).unwrap();
    let foreign = TcpStream::from(foreign);
    foreign.set_read_timeout(Some(PATIENCE)).unwrap();
    foreign
}

#[test]
fn a_host_that_is_not_of_the_job_is_told_its_address_and_closed() {
    within_deadline(|| {
        let allowed = IpAddr::from(Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        let server = serve(Some(vec![allowed.into()]));
        let mut told = String::new();
        from_elsewhere(&server).read_to_string(&mut told).unwrap();
        assert_eq!(told, "phalanx refuses 127.0.0.2\n", "STORE-5: not of an allowed address; STORE-9");
        assert_serves(&server);
    });
}

#[test]
fn a_host_of_an_allowed_network_is_served() {
    within_deadline(|| {
        let server = serve(Some(vec!["127.0.0.0/30".parse().unwrap()]));
        let mut stream = from_elsewhere(&server);
        let mut greeting = Vec::new();
        put_greeting(&mut greeting, 7);
        stream.write_all(&greeting).unwrap();
        assert_eq!(answer::<4>(&mut stream), 7_u32.to_le_bytes());
    });
}

#[test]
fn an_empty_list_of_hosts_allows_none() {
    within_deadline(|| {
        let server = serve(Some(Vec::new()));
        let error = StoreClient::connect(server.address(), soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "STORE-9");
        assert!(error.to_string().contains("sees this host as 127.0.0.1"), "STORE-9: {error}");
    });
}

#[test]
fn a_thousand_clients_meet() {
    within_deadline(|| {
        const CLIENTS: usize = 1000;
        raise_file_limit();
        let server = serve(None);
        let keys: Vec<String> = (0..CLIENTS).map(|rank| format!("/rank/{rank}")).collect();
        let mut streams: Vec<TcpStream> = keys.iter().map(|_| raw(&server)).collect();
        for (stream, key) in streams.iter_mut().zip(&keys) {
            let mut message = Vec::new();
            put_query(&mut message, Query::Set, key.as_bytes());
            put_bytes(&mut message, b"10.0.0.1:29500");
            put_list(&mut message, Query::Wait, &keys);
            stream.write_all(&message).unwrap();
        }
        for stream in &mut streams {
            assert_eq!(answer(stream), [0]);
        }
    });
}

#[test]
fn additions_of_many_threads_are_all_counted() {
    within_deadline(|| {
        let server = serve(None);
        let address = server.address();
        let threads: Vec<_> = (0..16)
            .map(|_| {
                thread::spawn(move || {
                    let mut client = StoreClient::connect(address, soon()).unwrap();
                    for _ in 0..100 {
                        client.add("n", 1, soon()).unwrap();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(client(&server).add("n", 0, soon()).unwrap(), 1600);
    });
}

#[test]
fn a_client_of_a_stopped_server_is_told() {
    within_deadline(|| {
        let server = serve(None);
        let mut client = client(&server);
        server.stop();
        server.stop();
        let error = client.add("n", 1, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        let error = client.add("n", 1, soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
        let error = StoreClient::connect(server.address(), soon()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    });
}

/// A thousand clients and the server's ends of them need more files than the usual soft limit.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
}
