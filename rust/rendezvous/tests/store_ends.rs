//! STORE-8, in a process of its own: the threads and files of this process are all the store's.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::time::{Duration, Instant};

use phalanx_rendezvous::store::{StoreClient, StoreServer};
use phalanx_types::Deadline;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const PATIENCE: Duration = Duration::from_secs(30);

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// The threads of this process that serve a store. On systems without `/proc`, none.
fn store_threads() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim_end() == "phalanx-store")
        .count()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

// One test for all: another one's server in the same process would be counted, too.
#[test]
fn a_store_survives_want_of_files_and_leaves_no_thread_file_or_port() {
    let files = open_files();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = StoreServer::start(listener, None).unwrap();
    let address = server.address();
    let mut first = StoreClient::connect(address, soon()).unwrap();
    assert!(store_threads() == 1 || !cfg!(target_os = "linux"));

    // Connect until the process has no file left, for us or for the server.
    let before = getrlimit(Resource::Nofile);
    let few = open_files() as u64 + 20;
    setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..before }).unwrap();
    let mut clients = Vec::new();
    while let Ok(client) = StoreClient::connect(address, Deadline::after(Duration::from_millis(200))) {
        clients.push(client);
    }
    assert!(!clients.is_empty() && clients.len() < 20);
    assert_eq!(first.add("n", 1, soon()).unwrap(), 1, "those who are in are served");
    drop(clients);
    let begin = Instant::now();
    while StoreClient::connect(address, soon()).is_err() {
        assert!(begin.elapsed() < PATIENCE, "the store accepts again when files are free");
    }
    setrlimit(Resource::Nofile, before).unwrap();

    server.stop();
    assert_eq!(store_threads(), 0, "STORE-8");
    TcpListener::bind(address).expect("STORE-8: the port is free");
    drop((server, first));
    assert_eq!(open_files(), files);
}
