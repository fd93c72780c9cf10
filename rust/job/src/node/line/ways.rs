//! The ways to the hub, beside each other: whoever opens a connection doesn't know which it takes.
//!
//! - NODE-13 (one-way): all connections of a node take the same way, once one of them has found it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use phalanx_rendezvous::{HubAddress, HubConnection};
use phalanx_types::message::Role;
use phalanx_types::{Deadline, Result};

/// How long the first connection by a way through Spark may take. That is there, so it answers, however busy its hosts
/// are.
const THROUGH_SPARK: Duration = Duration::from_secs(15);

/// A way to the hub. At the end of each the hub speaks TLS and wants its proof, so what carries the bytes is not
/// trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// To where the hub itself listens, `host:port`.
    Direct(String),
    /// To an executor's port, whose connections go on through Spark's messages (`ways/TunnelEntrance.scala` in the
    /// jar).
    Tunnel(String),
    /// To a port of the Spark Connect server, which carries them to its client (`ways/Relay.scala` in the jar,
    /// `connect/relay.py`).
    Relay(String),
}

impl Way {
    fn address(&self) -> &str {
        match self {
            Way::Direct(address) | Way::Tunnel(address) | Way::Relay(address) => address,
        }
    }

    /// How a connection goes, in words.
    pub(super) fn how(&self) -> &'static str {
        match self {
            Way::Direct(_) => "directly",
            Way::Tunnel(_) => "through Spark's messages",
            Way::Relay(_) => "through the Spark Connect server",
        }
    }

    /// How long it is tried.
    pub(super) fn patience(&self, connect_timeout: Duration) -> Duration {
        match self {
            Way::Direct(_) => connect_timeout,
            Way::Tunnel(_) | Way::Relay(_) => THROUGH_SPARK,
        }
    }
}

/// A node's ways to one hub; clones share which one is taken.
#[derive(Debug, Clone)]
pub(crate) struct Ways {
    hub: HubAddress,
    all: Arc<[Way]>,
    taken: Arc<AtomicUsize>,
}

impl Ways {
    /// The direct way to `hub` first, then the `others`.
    pub(crate) fn to(hub: HubAddress, others: &[Way]) -> Ways {
        let direct = Way::Direct(hub.address.clone());
        Ways { hub, all: [&[direct], others].concat().into(), taken: Arc::default() }
    }

    /// The way that is taken.
    pub(super) fn taken(&self) -> &Way {
        &self.all[self.taken.load(Ordering::Acquire)]
    }

    /// Takes the next way from now on; false where there is none.
    pub(super) fn take_next(&self) -> bool {
        let next = self.taken.load(Ordering::Acquire) + 1;
        let is_one = next < self.all.len();
        if is_one {
            self.taken.store(next, Ordering::Release);
        }
        is_one
    }

    /// Whether connections end at this host's own address.
    pub(super) fn is_direct(&self) -> bool {
        matches!(self.taken(), Way::Direct(_))
    }

    /// A connection by the way that is taken, unless `stop` is set.
    ///
    /// # Errors
    /// As [`HubConnection::open_unless`].
    pub(crate) fn open(&self, stop: &AtomicBool, role: Role, deadline: Deadline) -> Result<HubConnection> {
        HubConnection::open_unless(stop, &self.there(), role, deadline)
    }

    fn there(&self) -> HubAddress {
        HubAddress { address: self.taken().address().into(), ..self.hub.clone() }
    }
}
