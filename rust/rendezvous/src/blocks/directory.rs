//! Where the servers of blocks are: notes on the job's store, sealed with the generation's key, since anybody who
//! reaches the store can write to it. What isn't sealed leads nobody astray: it is an error.
//!
//! Hosts are known by their own names (`uname -n`), which the tasks that wrote the blocks told, too. Several nodes of
//! one host, and hosts that happen to have equal names, each leave a note.

use std::net::SocketAddr;
use std::time::Duration;

use phalanx_io::PublicKey;
use phalanx_types::{Deadline, Error, ErrorKind, Key, Result};
use serde::{Deserialize, Serialize};

use crate::store::StoreClient;
use crate::wire;

/// How long the store may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Set when each node has left its note.
const ALL: &str = "phalanx/blocks/all";
const NODES: &str = "phalanx/blocks/nodes";

/// This host's own name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// What a node tells its ranks, so that they find servers and prove themselves. It is a secret.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlockAccess {
    /// Where this host finds the job's store.
    pub store: SocketAddr,
    /// The generation's key.
    pub key: [u8; 32],
    /// How many nodes leave a note; none does where all are on one host.
    pub nodes: u32,
    /// How long a rank waits for a carrier, where a host has no node.
    pub carrier_within: Duration,
}

/// Where a server is, and who.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Location {
    pub(super) address: SocketAddr,
    pub(super) key: PublicKey,
}

fn counter(host: &str) -> String {
    format!("phalanx/blocks/{host}/count")
}

fn place(host: &str, number: i64) -> String {
    format!("phalanx/blocks/{host}/{number}")
}

/// Leaves a note for the ranks of all hosts that the blocks of `host` are served at `address`, by who shows
/// `server_key`.
///
/// # Errors
/// Those of the store.
pub fn publish(access: &BlockAccess, host: &str, address: SocketAddr, server_key: &PublicKey) -> Result<()> {
    let deadline = Deadline::after(PATIENCE);
    let mut store = StoreClient::connect(access.store, deadline)?;
    write_note(&mut store, access, host, address, server_key, deadline)?;
    if store.add(NODES, 1, deadline)? == i64::from(access.nodes) {
        store.set(ALL, b"", deadline)?;
    }
    // The store confirms no `set`, and forgets none that came before a question.
    store.check(&[ALL], deadline).map(drop)
}

/// The same for a server that is no node's, which the ranks may wait for.
///
/// # Errors
/// Those of the store.
pub fn leave_note(
    access: &BlockAccess,
    host: &str,
    address: SocketAddr,
    server_key: &PublicKey,
) -> Result<()> {
    let deadline = Deadline::after(PATIENCE);
    let mut store = StoreClient::connect(access.store, deadline)?;
    write_note(&mut store, access, host, address, server_key, deadline)?;
    store.check(&[ALL], deadline).map(drop)
}

fn write_note(
    store: &mut StoreClient,
    access: &BlockAccess,
    host: &str,
    address: SocketAddr,
    server_key: &PublicKey,
    deadline: Deadline,
) -> Result<()> {
    let note = serde_json::to_vec(&Location { address, key: server_key.clone() }).unwrap_or_default();
    let at = place(host, store.add(&counter(host), 1, deadline)? - 1);
    store.set(&at, &Key::from_bytes(access.key).seal(&at, &note), deadline)
}

/// The servers on `host`, in the order in which they came; waits until `deadline` for all nodes to have told theirs,
/// and where another host has none, for a carrier. There may be none.
pub(super) fn servers_of(access: &BlockAccess, host: &str, deadline: Deadline) -> Result<Vec<Location>> {
    let mut store = StoreClient::connect(access.store, deadline)?;
    if access.nodes > 0 {
        store.wait(&[ALL], deadline).map_err(|e| match e.kind() {
            ErrorKind::Timeout => Error::new(
                ErrorKind::Timeout,
                "not every task of the run reported in time where it serves blocks",
            ),
            _ => e,
        })?;
    }
    let mut count = store.add(&counter(host), 0, deadline)?;
    if count == 0 && host != host_name() {
        match store.wait(&[&place(host, 0)], Deadline::after(access.carrier_within)) {
            Err(e) if e.kind() == ErrorKind::Timeout => return Ok(Vec::new()),
            waited => waited?,
        }
        count = store.add(&counter(host), 0, deadline)?;
    }
    let read = |number: i64| {
        let at = place(host, number);
        let note = store.get(&at, deadline)?;
        let forged = || {
            Error::new(
                ErrorKind::Refused,
                format!("a process that is not part of this job has written to the job's store, at {at:?}"),
            )
        };
        wire::message(Key::from_bytes(access.key).open(&at, &note).ok_or_else(forged)?)
    };
    (0..count).map(read).collect()
}
