//! The job's store, as the ranks of a node find it.
//!
//! - NODE-49 (plain-inside): where nodes encrypt, ranks connect to the store at a loopback address of their own host,
//!   and what leaves the host is encrypted. The only socket that can be reached from outside speaks TLS.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use phalanx_io::Identity;
use phalanx_rendezvous::store::{StoreEntrance, StoreServer};
use phalanx_types::{Error, ErrorKind, Key, Network, NodePlacement, Result};

use crate::node::options::Options;

/// Where a node would serve the store.
pub(crate) struct StoreSocket {
    pub(crate) listener: TcpListener,
    /// What it shows other nodes, where these encrypt: only the first partition serves the store (TYPES-17).
    pub(crate) identity: Option<Identity>,
}

impl StoreSocket {
    /// The public half of its key; empty without one.
    pub(crate) fn key(&self) -> Vec<u8> {
        self.identity.as_ref().map(|identity| identity.public_key().clone()).unwrap_or_default()
    }
}

/// What a node has of the store.
pub(crate) enum NodeStore {
    /// The store itself.
    Here(StoreServer),
    /// A way to it that encrypts.
    Through(StoreEntrance),
    /// Only its address.
    At(SocketAddr),
}

impl NodeStore {
    /// What follows from the placement.
    pub(crate) fn open(
        options: &Options<'_>,
        placement: &NodePlacement,
        socket: StoreSocket,
    ) -> Result<NodeStore> {
        let job = &options.spec.job;
        let key = || Key::of_store(&options.spec.token, &job.id, placement.generation);
        let StoreSocket { listener, identity } = socket;
        match (placement.serves_store, job.policy.encryption.is_on()) {
            (true, true) => {
                let without =
                    || Error::new(ErrorKind::Protocol, "a node without a key is to serve the store");
                let identity = identity.ok_or_else(without)?;
                StoreServer::start_secure(inside()?, listener, &identity, key()).map(NodeStore::Here)
            }
            (true, false) => {
                let hosts = placement.peers.iter().copied().map(Network::from);
                let allowed = hosts.chain(job.policy.store_networks.iter().copied()).collect();
                StoreServer::start(listener, Some(allowed)).map(NodeStore::Here)
            }
            (false, true) => {
                let store_key = placement.store_key.clone();
                StoreEntrance::start(inside()?, placement.store, store_key, key()).map(NodeStore::Through)
            }
            (false, false) => Ok(NodeStore::At(placement.store)),
        }
    }

    /// Where the node and its ranks find it.
    pub(crate) fn address(&self) -> SocketAddr {
        match self {
            NodeStore::Here(server) => server.address(),
            NodeStore::Through(entrance) => entrance.address(),
            NodeStore::At(address) => *address,
        }
    }
}

/// NODE-49
fn inside() -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| Error::io("bind the store to 127.0.0.1", &e))
}
