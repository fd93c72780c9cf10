//! A network between nodes that changes the addresses that connections come from, as sidecars and SNAT do.
#![allow(clippy::unwrap_used, reason = "a test that can't go on panics")]

mod common;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use common::{Gather, TestCallbacks, Told, listen, open, silent, spawn_node, test_node};
use phalanx_job::{NodeCallbacks, Payload, run_node};
use phalanx_types::{Job, Join, Result};

/// Where connections of the second node come from, as the first one sees them.
const SEEN_AS: [u8; 4] = [127, 0, 0, 9];

/// Passes connections on to `store`, from another address: the node's look before its ranks start, and the one for
/// what nodes leave there.
fn translator(store: SocketAddr) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming().take(2) {
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

/// A node that reaches the store through the translator.
struct Behind(TestCallbacks);

impl NodeCallbacks for Behind {
    fn all_gather(&mut self, text: &str) -> Result<Vec<String>> {
        let mut all = self.0.all_gather(text)?;
        let mut vote: serde_json::Value = serde_json::from_str(&all[0]).unwrap();
        let first: Join = serde_json::from_value(vote["join"].clone()).unwrap();
        vote["join"]["store_port"] = translator(SocketAddr::new(first.address, first.store_port)).into();
        all[0] = vote.to_string();
        Ok(all)
    }

    fn interrupted(&mut self) -> Option<String> {
        self.0.interrupted()
    }

    fn observed(&mut self, changes: &[phalanx_job::MetricChange]) {
        self.0.observed(changes);
    }
}

/// What the driver tells of two nodes, the second behind the translator, that meet through Spark, and what the second
/// node says.
fn behind_a_translator(networks: &[&str]) -> (Told, Option<String>) {
    let mut job = Job::new("translated", "t", 2, 2).unwrap();
    job.policy.grace = Duration::from_millis(300);
    job.policy.connect_timeout = Duration::from_millis(500);
    job.policy.store_networks = networks.iter().map(|network| network.parse().unwrap()).collect();
    let dir = phalanx_testkit::temp_dir("translated");
    let (driver, gather, nowhere) = (open(&job), Gather::of(2), silent());
    let callbacks = |partition| TestCallbacks {
        gather: Some(Arc::clone(&gather)),
        partition,
        ..TestCallbacks::default()
    };
    let of_first = callbacks(0);
    let interrupt = Arc::clone(&of_first.interrupt);
    let first = spawn_node(test_node(&driver, 0, "true", dir.path()), of_first);
    let mut test = test_node(&driver, 1, "true", dir.path());
    test.spec.hub.clone_from(&nowhere.address);
    let mut behind = Behind(callbacks(1));
    let second =
        std::thread::spawn(move || run_node(&test.spec, Payload::Bytes(b""), &test.here, &mut behind));
    let second = second.join().unwrap();
    match &second {
        Ok(report) => {
            driver.node_report(report).unwrap();
            driver.stage_ended(0, None);
        }
        // Its task fails, and Spark ends the stage and the other task with that.
        Err(e) => {
            driver.stage_ended(0, Some(e.to_string()));
            interrupt.lock().unwrap().replace("the stage is over".into());
        }
    }
    let told = listen(&driver);
    let _ = first.join().unwrap();
    (told, second.err().map(|e| e.to_string()))
}

#[test]
fn a_host_whose_connections_come_from_elsewhere_fails_the_job_in_a_sentence_that_names_them() {
    let (told, problem) = behind_a_translator(&[]);
    let problem = problem.unwrap();
    for part in ["partition 1 on host-1", "127.0.0.9", "spark.phalanx.store.allowedNetworks"] {
        assert!(problem.contains(part), "NODE-7: {problem}");
    }
    assert!(told.failure.unwrap().message.contains("127.0.0.9"), "NODE-7");
}

#[test]
fn an_allowed_network_lets_it_in() {
    let (told, problem) = behind_a_translator(&["127.0.0.8/30"]);
    assert_eq!((told.failure, problem), (None, None));
}
