//! A network between nodes that changes the addresses that connections come from, as sidecars and SNAT do.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

#[path = "common/by_hand.rs"]
mod by_hand;
mod common;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use by_hand::{ends_well, join_by_hand, place_of};
use common::{TestCallbacks, Told, listen, open, spawn_node, test_node};
use phalanx_rendezvous::store::StoreServer;
use phalanx_types::{Job, Network};

/// Where connections of the second node come from, as the first one sees them.
const SEEN_AS: [u8; 4] = [127, 0, 0, 9];

/// Passes one connection on to `store`, from another address: the node's look before its ranks start.
fn translator(store: SocketAddr) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().take(1) {
            let client = client.unwrap();
            let server = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            server.bind(&SocketAddr::from((SEEN_AS, 0)).into()).unwrap();
            server.connect(&store.into()).unwrap();
            let server = TcpStream::from(server);
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    port
}

/// What the driver tells of two nodes, the first played by hand, the second behind the translator; and what the second
/// node says.
fn behind_a_translator(networks: &[&str]) -> (Told, Option<String>) {
    let mut job = Job::new("translated", "t", 2, 2).unwrap();
    job.policy.grace = Duration::from_millis(300);
    let dir = phalanx_testkit::temp_dir("translated");
    let driver = open(&job);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let allowed = networks.iter().map(|network| network.parse().unwrap());
    let of_hosts = Network::from(IpAddr::from([127, 0, 0, 1]));
    let store = StoreServer::start(listener, Some(allowed.chain([of_hosts]).collect())).unwrap();
    let mut first = join_by_hand(&driver, 0, translator(store.address()));
    let second = spawn_node(test_node(&driver, 1, "true", dir.path()), TestCallbacks::default());
    place_of(&mut first);
    ends_well(&mut first, 0);
    let problem = second.join().unwrap().err().map(|e| e.to_string());
    (listen(&driver), problem)
}

#[test]
fn a_host_whose_connections_come_from_elsewhere_fails_the_job_in_a_sentence_that_names_them() {
    let (told, problem) = behind_a_translator(&[]);
    let problem = problem.unwrap();
    for part in ["partition 1 on host-1", "127.0.0.9", "spark.phalanx.store.allowedNetworks"] {
        assert!(problem.contains(part), "NODE-45: {problem}");
    }
    assert!(told.failure.unwrap().message.contains("127.0.0.9"), "NODE-45");
}

#[test]
fn an_allowed_network_lets_it_in() {
    let (told, problem) = behind_a_translator(&["127.0.0.8/30"]);
    assert_eq!((told.failure, problem), (None, None));
}
