//! Who may connect to a store where nobody proves anything.

use std::io::Write;
use std::net::IpAddr;

use mio::net::TcpStream;
use phalanx_io::check_own_user;
use phalanx_types::{Error, ErrorKind, Network, Result};
use rustc_hash::FxHashSet;

use super::protocol::refusal;

/// Whose connections are taken.
pub(super) enum Admits {
    All,
    OwnUser,
    Some(Allowed),
}

impl Admits {
    /// Lets in the client at the other end of `stream`, which comes from the address `from`, or says why not.
    pub(super) fn admit(&self, stream: &mut TcpStream, from: IpAddr) -> Result<()> {
        match self {
            Admits::All => Ok(()),
            Admits::OwnUser => check_own_user(stream),
            Admits::Some(allowed) if allowed.contains(from) => Ok(()),
            Admits::Some(_) => {
                // STORE-9. Who can't be told finds the connection closed.
                let _ = stream.write_all(&refusal(from));
                Err(Error::new(ErrorKind::Refused, "it is not a node of this job"))
            }
        }
    }
}

/// Addresses that may connect.
pub(super) struct Allowed {
    addresses: FxHashSet<IpAddr>,
    networks: Vec<Network>,
}

impl From<Vec<Network>> for Allowed {
    fn from(all: Vec<Network>) -> Allowed {
        let addresses = all.iter().filter_map(Network::address).collect();
        Allowed { addresses, networks: all.into_iter().filter(|one| one.address().is_none()).collect() }
    }
}

impl Allowed {
    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.addresses.contains(&address) || self.networks.iter().any(|network| network.contains(address))
    }
}
