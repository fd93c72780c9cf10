//! What a log has of those whom a store refuses. A program of its own: a process has one log.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use phalanx_io::Identity;
use phalanx_rendezvous::store::StoreServer;
use phalanx_testkit::{eventually, warnings};
use phalanx_types::Key;

const PATIENCE: Duration = Duration::from_secs(30);

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

/// A stranger's connection, until it is over.
fn knock(door: SocketAddr) {
    let mut stranger = TcpStream::connect(door).unwrap();
    stranger.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stranger.write_all(b"GET / HTTP/1.1\r\n\r\n");
    let _ = stranger.read_to_end(&mut Vec::new());
}

#[test]
fn a_thousand_strangers_leave_a_line_or_two() {
    drop(warnings());
    let begin = Instant::now();
    let elsewhere = "127.0.0.9".parse().unwrap();
    let plain = StoreServer::start(listen(), Some(vec![elsewhere])).unwrap();
    let nodes = listen();
    let outside = nodes.local_addr().unwrap();
    let identity = Identity::new().unwrap();
    let _secure = StoreServer::start_secure(listen(), nodes, &identity, Key::from_bytes([1; 32])).unwrap();
    for door in [plain.address(), outside] {
        (0..1000).for_each(|_| knock(door));
    }
    eventually("both stores have said why", PATIENCE, || {
        let said = warnings();
        ["it is not a node of this job", "it doesn't speak TLS"]
            .iter()
            .all(|why| said.iter().any(|line| line.contains(why)))
    });
    let said = warnings();
    let at_most = 2 * (1 + begin.elapsed().as_secs() as usize / 10);
    assert!(said.len() <= at_most, "IO-7: {} lines, the last is {:?}", said.len(), said.last());
}
