//! How a node's connections get to the hub: directly, or through a tunnel that its process has laid through Spark.
//!
//! - ROUTE-1 (one-way): all connections of a node take the same way, once one of them has found it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use phalanx_rendezvous::{HubAddress, HubConnection};
use phalanx_types::message::Role;
use phalanx_types::{Deadline, Result};

/// The ways to one hub; clones share which one is taken.
#[derive(Debug, Clone)]
pub(crate) struct HubRoute {
    pub(crate) direct: HubAddress,
    /// The near end of the tunnel.
    tunnel: Option<HubAddress>,
    through_tunnel: Arc<AtomicBool>,
}

impl HubRoute {
    /// The direct way, until [`HubRoute::turn`]; `tunnel` is the near end's `host:port`.
    pub(crate) fn to(direct: HubAddress, tunnel: Option<&str>) -> HubRoute {
        let tunnel = tunnel.map(|address| HubAddress { address: address.into(), ..direct.clone() });
        HubRoute { direct, tunnel, through_tunnel: Arc::default() }
    }

    /// Whether connections go through the tunnel.
    pub(crate) fn is_through_tunnel(&self) -> bool {
        self.through_tunnel.load(Ordering::Acquire)
    }

    /// Takes the other way from now on, if there is one; whether there is.
    pub(crate) fn turn(&self) -> bool {
        if self.tunnel.is_some() {
            self.through_tunnel.fetch_not(Ordering::AcqRel);
        }
        self.tunnel.is_some()
    }

    /// A connection by the way that is taken.
    ///
    /// # Errors
    /// As [`HubConnection::open`].
    pub(crate) fn open(&self, role: Role, deadline: Deadline) -> Result<HubConnection> {
        let hub = self.tunnel.as_ref().filter(|_| self.is_through_tunnel()).unwrap_or(&self.direct);
        HubConnection::open(hub, role, deadline)
    }
}
