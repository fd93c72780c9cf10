//! Blocks of data sets between hosts: a node serves those that lie on its host, a rank of another host fetches them.
//!
//! A block is a range of bytes in a file of the job's data folder, which Spark's tasks wrote. The server owns a
//! listening socket and a thread; it reads files and writes none. The client owns its connections, and no thread.
//!
//! - BLOCKS-1 (job-only): who has not proved that it knows the generation's key is told nothing. Who has is served
//!   files of the folder that the job names, which belong to the server's user, and nothing else.
//! - BLOCKS-2 (isolation): no client can stop the others: not by silence, by dripping, by never reading, nor by number.
//! - BLOCKS-3 (bounded): of each connection the server holds `MAX_WAITING_BYTES`, whatever is asked for.
//! - BLOCKS-4 (ends): every wait of a client ends: with the deadline for a connection, or where nothing comes for
//!   `STALLED_AFTER`.
//! - BLOCKS-5 (named): what can't be fetched is an error that names the host, and what it said.
//! - BLOCKS-6 (clean-stop): after `stop` returns, the thread has ended, and all sockets are closed.
//!
//! Servers are found by their hosts' names on the job's store (`directory`), where each node tells where its own is
//! and what key it shows, sealed with the generation's key. For a host without a node that of partition 0 does so, once
//! a carrier serves there.

mod client;
mod directory;
mod server;

pub use client::BlockClient;
pub use directory::{BlockAccess, host_name, leave_note, publish};
pub use server::BlockServer;

/// What is spoken above TLS.
const PROTOCOL: &str = "phalanx-blocks/1";
/// The longest request.
const MAX_REQUEST_BYTES: usize = 64 << 10;
/// The longest answer that is no block.
const MAX_ANSWER_BYTES: usize = 4 << 10;
/// What begins the answer to a request that is granted; the bytes follow.
const GRANTED: &[u8] = b"+";
/// What is read from a file or a socket at once.
const CHUNK_BYTES: usize = 64 << 10;
/// What may wait for one client before no more of the file is read.
const MAX_WAITING_BYTES: usize = 256 << 10;
/// How long a client may take to prove itself.
const PROVED_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);
/// How many connections may be at that.
const MAX_UNPROVED: usize = 1024;
/// How many connections a server has in all; a rank has one, and so has each worker process of its loaders.
const MAX_CONNECTIONS: usize = 4096;
/// A client gives a server up that sends nothing for so long.
const STALLED_AFTER: std::time::Duration = std::time::Duration::from_secs(30);

/// What a client asks for.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    /// The file's path on the server's host.
    file: String,
    start: u64,
    bytes: u64,
}
