//! Blocks from node to rank: who is served, what is served, and that nobody holds up the others.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use phalanx_io::{Identity, TlsChannel};
use phalanx_rendezvous::blocks::{BlockAccess, BlockClient, BlockServer, host_name, leave_note, publish};
use phalanx_rendezvous::store::{StoreClient, StoreServer};
use phalanx_types::{Deadline, ErrorKind, Key};

const FOLDER: &str = "phalanx-data-0123456789abcdef";
const HOST: &str = "there";
const PATIENCE: Duration = Duration::from_secs(60);

/// A host with a file of blocks, whose node serves it, and the job's store.
struct There {
    store: StoreServer,
    server: BlockServer,
    identity: Identity,
    _disk: tempfile::TempDir,
    file: PathBuf,
    bytes: Vec<u8>,
}

impl There {
    fn serve() -> There {
        let store = StoreServer::start(listen(), None).unwrap();
        let disk = tempfile::tempdir().unwrap();
        let file = disk.path().join(FOLDER).join("3-17");
        fs::create_dir(file.parent().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        fs::write(&file, &bytes).unwrap();
        let identity = Identity::new().unwrap();
        let server = BlockServer::start(listen(), &identity, key(1), FOLDER).unwrap();
        There { store, server, identity, _disk: disk, file, bytes }
    }

    fn told() -> There {
        let there = There::serve();
        there.publish(there.server.address());
        there
    }

    fn publish(&self, address: SocketAddr) {
        publish(&self.access(1), HOST, address, self.identity.public_key()).unwrap();
    }

    fn access(&self, key: u8) -> BlockAccess {
        let carrier_within = Duration::from_millis(100);
        BlockAccess { store: self.store.address(), key: [key; 32], nodes: 1, carrier_within }
    }

    fn rank(&self) -> BlockClient {
        BlockClient::new(self.access(1))
    }

    fn fetched(&self, rank: &mut BlockClient, start: u64, bytes: u64) -> phalanx_types::Result<Vec<u8>> {
        fetched(rank, &self.file, start, bytes)
    }
}

fn fetched(rank: &mut BlockClient, file: &Path, start: u64, bytes: u64) -> phalanx_types::Result<Vec<u8>> {
    let mut to = Vec::new();
    rank.fetch(HOST, file.to_str().unwrap(), start, bytes, &mut to).map(|()| to)
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

#[test]
fn blocks_come_whole_and_one_after_the_other_over_one_connection() {
    let there = There::told();
    let mut rank = there.rank();
    for (start, length) in [(0, 3_000_000), (64, 1), (2_999_999, 1), (128, 1_000_000), (5, 0)] {
        let came = there.fetched(&mut rank, start, length).unwrap();
        assert!(came == there.bytes[start as usize..(start + length) as usize], "{start} {length}");
    }
    assert_eq!(format!("{rank:?}"), "BlockClient(1 connections)");
}

#[test]
fn ranks_fetch_at_the_same_time() {
    let there = There::told();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(there.fetched(&mut there.rank(), 0, 3_000_000).unwrap() == there.bytes));
        }
    });
}

#[test]
fn who_does_not_know_the_key_hears_nothing() {
    let there = There::told();
    // It can't read where servers are ...
    let mut stranger = BlockClient::new(there.access(2));
    let refused = there.fetched(&mut stranger, 0, 10).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "BLOCKS-1: {refused}");
    // ... and where it knows, it is not served: another server of the same key pair, with another generation's key.
    let other = BlockServer::start(listen(), &there.identity, key(2), FOLDER).unwrap();
    let misled = There::serve();
    publish(&misled.access(1), HOST, other.address(), there.identity.public_key()).unwrap();
    let refused = there.fetched(&mut misled.rank(), 0, 10).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PeerLost, "BLOCKS-1: {refused}");
}

#[test]
fn a_server_with_another_key_pair_is_told_nothing() {
    let there = There::serve();
    let other = Identity::new().unwrap();
    publish(&there.access(1), HOST, there.server.address(), other.public_key()).unwrap();
    let refused = there.fetched(&mut there.rank(), 0, 10).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused, "{refused}");
    assert!(refused.to_string().contains("not the expected one"), "{refused}");
}

#[test]
fn a_note_that_no_node_has_left_leads_nobody_astray() {
    let there = There::told();
    let soon = Deadline::after(PATIENCE);
    let mut store = StoreClient::connect(there.store.address(), soon).unwrap();
    let at = format!("phalanx/blocks/{HOST}/0");
    let note = store.get(&at, soon).unwrap();
    store.set(&at, &[&[0; 32], &note[32..]].concat(), soon).unwrap();
    let refused = there.fetched(&mut there.rank(), 0, 10).unwrap_err();
    assert!(refused.to_string().contains("not part of this job"), "{refused}");
}

#[test]
fn only_files_of_the_jobs_folder_are_served() {
    let there = There::told();
    let beside = there.file.parent().unwrap().parent().unwrap().join("secret");
    fs::write(&beside, "secret").unwrap();
    let link = there.file.with_file_name("4-1");
    std::os::unix::fs::symlink(&beside, &link).unwrap();
    let relative = PathBuf::from(FOLDER).join("3-17");
    for file in [beside, link, relative, there.file.with_file_name(".."), there.file.with_file_name("gone")] {
        let refused = fetched(&mut there.rank(), &file, 0, 3).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::MissingFile, "BLOCKS-1: {} {refused}", file.display());
    }
}

#[test]
fn a_file_that_is_too_short_is_named_and_the_connection_goes_on() {
    let there = There::told();
    let mut rank = there.rank();
    for (start, length) in [(2_999_999, 2), (u64::MAX, 2), (0, u64::MAX)] {
        let short = there.fetched(&mut rank, start, length).unwrap_err();
        assert_eq!(short.kind(), ErrorKind::MissingFile, "{short}");
        assert!(
            short.to_string().contains("3-17 has 3000000 bytes and should have more"),
            "BLOCKS-5: {short}"
        );
    }
    assert_eq!(there.fetched(&mut rank, 0, 3).unwrap(), [0, 1, 2]);
}

#[test]
fn silent_dripping_and_garbage_clients_hold_up_nobody() {
    let there = There::told();
    let address = there.server.address();
    let silent: Vec<_> = (0..64).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut hello = Vec::new();
    TlsChannel::connect(there.identity.public_key(), "phalanx-blocks/1").unwrap().drain(&mut hello).unwrap();
    let begun: Vec<_> = (0..64)
        .map(|at| {
            let mut stream = TcpStream::connect(address).unwrap();
            std::io::Write::write_all(&mut stream, &hello[..at.min(hello.len())]).unwrap();
            stream
        })
        .collect();
    let mut garbage = TcpStream::connect(address).unwrap();
    std::io::Write::write_all(&mut garbage, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(there.fetched(&mut there.rank(), 0, 3_000_000).unwrap() == there.bytes, "BLOCKS-2");
    // Each is let go when its time is over, whatever it has begun.
    for mut stream in silent.into_iter().chain(begun) {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = [0; 4096];
        while let Ok(1..) = stream.read(&mut rest) {}
    }
}

#[test]
fn a_rank_that_does_not_read_holds_up_nobody() {
    struct Never;
    impl std::io::Write for Never {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let there = There::told();
    let mut full = there.rank();
    let problem = full.fetch(HOST, there.file.to_str().unwrap(), 0, 3_000_000, &mut Never).unwrap_err();
    assert_eq!(problem.kind(), ErrorKind::Io, "{problem}");
    assert!(there.fetched(&mut there.rank(), 0, 3_000_000).unwrap() == there.bytes, "BLOCKS-2");
    assert_eq!(there.fetched(&mut full, 0, 2).unwrap(), [0, 1], "over a new connection");
}

#[test]
fn a_server_that_is_lost_is_named_with_both_hosts() {
    let there = There::told();
    let mut rank = there.rank();
    there.fetched(&mut rank, 0, 10).unwrap();
    there.server.stop();
    for mut rank in [rank, there.rank()] {
        let lost = there.fetched(&mut rank, 0, 10).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::PeerLost, "BLOCKS-5: {lost}");
        let here = phalanx_rendezvous::blocks::host_name();
        for word in [HOST, &here, &there.server.address().to_string()] {
            assert!(lost.to_string().contains(word), "BLOCKS-5: {lost}");
        }
    }
    TcpListener::bind(there.server.address()).unwrap(); // BLOCKS-6
}

#[test]
fn a_block_that_is_cut_off_on_the_way_is_a_lost_server() {
    let there = There::serve();
    // Somebody on the way who cuts the connection after some bytes of it.
    let (middle, server) = (listen(), there.server.address());
    there.publish(middle.local_addr().unwrap());
    let cutter = thread::spawn(move || {
        let (client, _) = middle.accept().unwrap();
        let far = TcpStream::connect(server).unwrap();
        let (mut up, mut down) = ((client.try_clone().unwrap(), far.try_clone().unwrap()), (far, client));
        let forth = thread::spawn(move || std::io::copy(&mut up.0, &mut up.1));
        let _ = std::io::copy(&mut Read::by_ref(&mut down.0).take(500_000), &mut down.1);
        for end in [&down.0, &down.1] {
            let _ = end.shutdown(std::net::Shutdown::Both);
        }
        let _ = forth.join();
    });
    let lost = there.fetched(&mut there.rank(), 0, 3_000_000).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::PeerLost, "{lost}");
    cutter.join().unwrap();
}

#[test]
fn of_several_servers_behind_one_name_the_one_with_the_file_is_asked() {
    let (here, there) = (There::serve(), There::serve());
    let access = BlockAccess { nodes: 2, ..there.access(1) };
    for server in [&here, &there] {
        // The first has no such file; on a host of its own it would have no such path.
        let folder = if std::ptr::eq(server, &here) { "phalanx-data-another" } else { FOLDER };
        let serves = BlockServer::start(listen(), &server.identity, key(1), folder).unwrap();
        publish(&access, HOST, serves.address(), server.identity.public_key()).unwrap();
        std::mem::forget(serves); // until the test's process ends
    }
    let mut rank = BlockClient::new(access);
    for _ in 0..2 {
        assert_eq!(there.fetched(&mut rank, 1, 2).unwrap(), [1, 2]);
    }
}

#[test]
fn a_host_without_a_node_or_a_carrier_is_named() {
    let there = There::told();
    let elsewhere = |access: BlockAccess, host: &str| {
        BlockClient::new(access).fetch(host, "/a/b", 0, 1, &mut Vec::new()).unwrap_err()
    };
    let nobody = elsewhere(there.access(1), "elsewhere");
    assert_eq!(nobody.kind(), ErrorKind::MissingFile, "{nobody}");
    let said = "no task serves the blocks on elsewhere: this run has none there, and Spark started none there \
                within 100ms";
    assert!(nobody.to_string().starts_with(said), "BLOCKS-5: {nobody}");
    // What is not on this host is nowhere: carriers are for others.
    let gone = elsewhere(BlockAccess { nodes: 0, carrier_within: PATIENCE, ..there.access(1) }, &host_name());
    assert_eq!(gone.kind(), ErrorKind::MissingFile, "{gone}");
}

#[test]
fn a_rank_waits_for_the_carrier_of_a_host_without_a_node() {
    let there = There::serve();
    let access = BlockAccess { nodes: 0, carrier_within: PATIENCE, ..there.access(1) };
    thread::scope(|scope| {
        let asks = scope.spawn(|| fetched(&mut BlockClient::new(access.clone()), &there.file, 1, 2).unwrap());
        thread::sleep(Duration::from_millis(100));
        assert!(!asks.is_finished(), "it waits");
        leave_note(&access, HOST, there.server.address(), there.identity.public_key()).unwrap();
        assert_eq!(asks.join().unwrap(), [1, 2]);
    });
}
