//! Tasks that join, again and again where connections break, and their places.

use std::time::Instant;

use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::{Join, place};

use super::{Course, Gathering, start};

impl Course {
    pub(super) fn join(&mut self, now: Instant, partition: u32, mut join: Join, out: &mut Outbox) {
        join.partition = partition;
        if self.first_join.is_none() {
            self.first_join = Some(now);
            self.phase(now, 0, None, "first join");
        }
        let node = self.nodes.get_mut(&partition);
        if let Some(before) = node.and_then(|node| node.join.replace(join.clone()).filter(|_| node.placed))
            && (before.address, before.store_port) != (join.address, join.store_port)
        {
            // Spark has started the task again: the node that was there, and its ranks, are gone.
            self.node_lost(now, partition, now, out);
        }
        if self.stopping.is_some() {
            return out.send(partition, HubMessage::Stop { reason: "the job is over".into() });
        }
        match self.gathering {
            Gathering::ThroughSpark => out.send(partition, HubMessage::UseFallback),
            // A second join of a placed node: it came back before it had read its place.
            Gathering::AtHub | Gathering::Placed => self.place_if_complete(now, out),
        }
    }

    fn place_if_complete(&mut self, now: Instant, out: &mut Outbox) {
        let joins: Vec<Join> = self.nodes.values().filter_map(|node| node.join.clone()).collect();
        if joins.len() < self.nodes.len() {
            return;
        }
        let placement = match place(&self.job, &joins) {
            Ok(placement) => placement,
            Err(e) => return self.fail(now, start(e.to_string()), out),
        };
        for placed in placement.nodes {
            if let Some(node) = self.nodes.get_mut(&placed.partition) {
                node.placed = true;
            }
            out.send(placed.partition, HubMessage::Place(Box::new(placed)));
        }
        self.all_placed(now);
    }

    pub(super) fn all_placed(&mut self, now: Instant) {
        let complete = self.nodes.values().all(|node| node.placed);
        if complete && self.gathering != Gathering::Placed {
            self.gathering = Gathering::Placed;
            self.phase(now, 0, None, "all joined");
        }
    }

    /// The control connection of a node broke.
    pub fn disconnected(&mut self, now: Instant, partition: u32) {
        let gathering = self.gathering;
        if let Some(node) = self.nodes.get_mut(&partition) {
            node.gone_since = Some(now);
            if gathering == Gathering::AtHub {
                node.join = None;
            }
        }
    }
}
