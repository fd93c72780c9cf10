//! Who serves the blocks of a host where the run has no node.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Where a carrier serves the blocks of its host: a Spark task without ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Carrier {
    /// The host's own name (`uname -n`), by which the index of a data set knows it.
    pub host: String,
    /// Where ranks reach its server.
    pub address: SocketAddr,
    /// The public key that the server shows.
    pub key: Vec<u8>,
}
