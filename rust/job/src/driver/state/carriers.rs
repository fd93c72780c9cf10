//! The carriers of an attempt, as the driver sees them: tasks without ranks that serve the blocks of hosts where the
//! run has no node.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use phalanx_types::Carrier;

use super::node::{Contact, Loss};

/// The carriers of an attempt, by the partition that their connections name.
#[derive(Debug, Default)]
pub(super) struct Carriers(pub(super) BTreeMap<u32, (Carrier, Contact)>);

impl Carriers {
    pub(super) fn disconnected(&mut self, now: Instant, partition: u32) {
        if let Some((_, contact)) = self.0.get_mut(&partition) {
            *contact = contact.broken(now);
        }
    }

    /// When each counts as lost, if nothing is heard of it until then.
    pub(super) fn losses(&self, node_timeout: Duration) -> impl Iterator<Item = (u32, Loss)> {
        self.0.iter().map(move |(partition, (_, contact))| (*partition, contact.loss(node_timeout)))
    }

    /// Whether another one serves the blocks of this host.
    pub(super) fn has_another(&self, partition: u32, host: &str) -> bool {
        self.0.iter().any(|(other, (carrier, _))| *other != partition && carrier.host == host)
    }
}
