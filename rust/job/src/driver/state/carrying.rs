//! What carriers tell, and what becomes of the job when one is lost.
//!
//! - DRIVER-14 (one-a-host): the first of a host stays, and the others are let go.
//! - DRIVER-15 (told): the node that serves the store is told of each, again and again: an order may go with a
//!   connection.
//! - DRIVER-16 (lost-is-lost): one that falls silent, or whose task ends, is lost with its blocks, as a node is with
//!   its ranks (DRIVER-26). The attempt fails, and another begins in another Spark stage, for which the blocks are
//!   written again.
//! - DRIVER-61 (missed-is-lost): blocks that a rank doesn't find any more are lost as with a carrier: an executor went
//!   that had no task of the run.
//! - DRIVER-17 (attempt-only): they are let go with their attempt.

use std::collections::BTreeSet;
use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Carrier, Failure, FailureKind, Join};

use super::job_state::JobState;
use super::news::{HostCarried, HostsPlaced};
use super::node::{Contact, Loss};
use super::phase::JobPhase;

/// The partition whose node serves the store (TYPES-17).
const STORE_PARTITION: u32 = 0;

impl JobState {
    /// The hub gives the tasks that joined so their places.
    pub(super) fn announce_placed(&mut self, joins: Vec<Join>) {
        if !self.job.data_folder.is_empty() {
            let hosts: BTreeSet<String> = joins.into_iter().map(|join| join.name).collect();
            let hosts = hosts.into_iter().collect();
            self.news.placed.push(HostsPlaced { attempt: self.attempts.present, hosts });
        }
    }

    /// Takes a fact from a carrier, told over its connection for `attempt`.
    pub(super) fn carrier_message(
        &mut self,
        now: Instant,
        partition: u32,
        attempt: Attempt,
        message: NodeMessage,
        out: &mut Outbox,
    ) {
        let is_wanted = attempt == self.attempts.present
            && !self.job.data_folder.is_empty()
            && matches!(self.phase, JobPhase::Running(_));
        match message {
            NodeMessage::Carries(carrier)
                if is_wanted && !self.carriers.has_another(partition, &carrier.host) =>
            {
                self.carrier_came(now, partition, carrier, out);
            }
            NodeMessage::Ping if self.carriers.0.contains_key(&partition) => {
                if let Some((carrier, contact)) = self.carriers.0.get_mut(&partition) {
                    *contact = Contact::Open { heard: now };
                    out.send(STORE_PARTITION, HubMessage::Carried(carrier.clone())); // DRIVER-15
                }
                out.send(partition, HubMessage::Pong);
            }
            // Over the connection of an attempt before, or before its place: nobody waits for it.
            NodeMessage::Carries(_) | NodeMessage::Ping => out.send(partition, HubMessage::Released),
            NodeMessage::Done { problem, interrupted, .. } => {
                if attempt == self.attempts.present && self.carriers.0.contains_key(&partition) {
                    let why = problem.or(interrupted).unwrap_or_else(|| "its task has ended".into());
                    self.carrier_lost(now, partition, &why, out);
                }
            }
            _ => {
                let said = format!("a node of partition {partition}, which the job doesn't have");
                self.reason(Level::Warn, said);
            }
        }
        self.conclude(now, out);
    }

    fn carrier_came(&mut self, now: Instant, partition: u32, carrier: Carrier, out: &mut Outbox) {
        out.send(STORE_PARTITION, HubMessage::Carried(carrier.clone()));
        let host = carrier.host.clone();
        let before = self.carriers.0.insert(partition, (carrier, Contact::Open { heard: now }));
        if before.is_none() {
            self.reason(Level::Info, format!("a carrier serves the blocks of {host}"));
            self.news.carried.push(HostCarried { attempt: self.attempts.present, host });
        }
    }

    /// DRIVER-16
    pub(super) fn lose_silent_carriers(&mut self, now: Instant, out: &mut Outbox) {
        let losses = self.carriers.losses(self.job.policy.node_timeout);
        let lost: Vec<(u32, Loss)> = losses.filter(|(_, loss)| loss.due <= now).collect();
        for (partition, loss) in lost {
            let silent = now.saturating_duration_since(loss.since).as_secs_f64();
            let why = format!(
                "the driver heard nothing from its task for {silent:.1} s; its executor or host probably ended"
            );
            self.carrier_lost(now, partition, &why, out);
        }
    }

    fn carrier_lost(&mut self, now: Instant, partition: u32, why: &str, out: &mut Outbox) {
        let Some((carrier, _)) = self.carriers.0.remove(&partition) else { return };
        let message = format!(
            "the blocks of data sets on {} are lost with the task that served them: {why}",
            carrier.host
        );
        self.reason(Level::Warn, &message);
        // Ranks that are being ended need no blocks, unless they start again.
        self.attempts.has_lost_blocks = true;
        if self.phase.stop_reason().is_none() {
            let lost = Failure::without_rank(FailureKind::LostNode, message);
            self.fail(now, Failure { host: carrier.host, ..lost }, out);
        }
    }

    /// DRIVER-17
    pub(super) fn release_carriers(&mut self, out: &mut Outbox) {
        for partition in std::mem::take(&mut self.carriers).0.into_keys() {
            out.send(partition, HubMessage::Released);
        }
    }
}
