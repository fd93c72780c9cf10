//! How tasks join (again and again where connections break), which places they get, and how long that may take.

use std::time::Instant;

use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::{Join, place};

use super::job_state::{JobState, start};
use super::news::Point;
use super::node::{Arrival, Node};
use super::phase::JobPhase;

impl JobState {
    pub(super) fn join(&mut self, now: Instant, partition: u32, mut join: Join, out: &mut Outbox) {
        join.partition = partition;
        if let JobPhase::Joining(joining) = &mut self.phase
            && !std::mem::replace(&mut joining.has_begun, true)
        {
            self.point(now, 0, Point::FirstJoin);
        }
        let arrival = self.step(partition, |node| node.joined(now, join));
        if arrival == Some(Arrival::Another) {
            self.node_lost(now, partition, now, "Spark has started its task again", out);
        }
        match (&self.phase, arrival) {
            (JobPhase::Stopping(_) | JobPhase::Over(_), _) | (JobPhase::Running(_), Some(Arrival::Late)) => {
                out.send(partition, HubMessage::Stop { reason: "the job is over".into() });
            }
            (JobPhase::Joining(_), _) => self.place_if_complete(now, out),
            (JobPhase::Running(placement), _) => {
                // It came back before it had read its place.
                let place = usize::try_from(partition).ok().and_then(|at| placement.nodes.get(at));
                if let Some(place) = place {
                    out.send(partition, HubMessage::Place(Box::new(place.clone())));
                }
            }
        }
    }

    fn place_if_complete(&mut self, now: Instant, out: &mut Outbox) {
        // All but the last of the joins find one missing: nothing is copied for them.
        if !self.nodes.values().all(|node| node.waits().is_some()) {
            return;
        }
        let joins: Vec<Join> = self.nodes.values().filter_map(|node| node.waits().cloned()).collect();
        let placement = match place(&self.job, self.generation, &joins) {
            Ok(placement) => placement,
            Err(e) => return self.fail(now, start(e.to_string()), out),
        };
        self.step_all(Node::placed);
        for place in &placement.nodes {
            out.send(place.partition, HubMessage::Place(Box::new(place.clone())));
        }
        self.announce_placed(joins);
        self.phase = JobPhase::Running(placement);
        self.point(now, 0, Point::AllJoined);
    }

    /// Whether tasks join, and this one's has no place yet.
    pub(super) fn waits_for_place(&self, partition: u32) -> bool {
        let unplaced = self.nodes.get(&partition).is_some_and(Node::is_unplaced);
        unplaced && matches!(self.phase, JobPhase::Joining(_))
    }

    /// When joining fails.
    pub(super) fn join_due(&self) -> Option<Instant> {
        let JobPhase::Joining(joining) = &self.phase else { return None };
        Some(joining.since + self.job.policy.join_timeout)
    }

    pub(super) fn join_deadline(&mut self, now: Instant, out: &mut Outbox) {
        if self.join_due().is_none_or(|due| due > now) {
            return;
        }
        // DRIVER-26: one that was there has not come back, and no other task came in its stead.
        let vanished = self.nodes.iter().filter(|(_, node)| node.has_vanished());
        let first = vanished.filter_map(|(partition, node)| Some((node.last_heard()?, *partition))).min();
        if let Some((since, partition)) = first {
            let why = format!(
                "it was there before all tasks had joined, and neither it nor another task in its stead came within \
                 {:.0?}",
                self.job.policy.join_timeout
            );
            self.node_lost(now, partition, since, &why, out);
        } else {
            let message = format!(
                "{} did not join within {:.0?}; {} of {} tasks are there. Are the executors up, and can they connect \
                 to the driver?",
                self.missing(),
                self.job.policy.join_timeout,
                self.known(),
                self.job.tasks
            );
            self.fail(now, start(message), out);
        }
    }
}
