//! How tasks join (again and again where connections break), which places they get, and how long that may take.

use std::time::{Duration, Instant};

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::{Join, place};

use super::job_state::{JobState, start};
use super::node::{Arrival, Node};
use super::phase::{JobPhase, Met, Way};

/// How long after the connect time-out of the first task the hub has the tasks ask through Spark who can't reach it.
const FALLBACK_MARGIN: Duration = Duration::from_secs(2);

impl JobState {
    pub(super) fn join(&mut self, now: Instant, partition: u32, mut join: Join, out: &mut Outbox) {
        join.partition = partition;
        if let JobPhase::Joining(joining) = &mut self.phase
            && joining.first_join.is_none()
        {
            joining.first_join = Some(now);
            self.point(now, 0, None, "first join");
        }
        let arrival = self.step(partition, |node| node.joined(now, join));
        if arrival == Some(Arrival::Another) {
            self.node_lost(now, partition, now, "Spark has started its task again", out);
        }
        match (&self.phase, arrival) {
            (JobPhase::Stopping(_) | JobPhase::Over(_), _) | (JobPhase::Running(_), Some(Arrival::Late)) => {
                out.send(partition, HubMessage::Stop { reason: "the job is over".into() });
            }
            (JobPhase::Joining(joining), _) => {
                if joining.way == Way::ThroughSpark {
                    out.send(partition, HubMessage::UseFallback);
                }
                self.place_if_complete(now, out);
            }
            (JobPhase::Running(Met::ThroughSpark), _) => out.send(partition, HubMessage::UseFallback),
            (JobPhase::Running(Met::AtHub(placement)), _) => {
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
        let placement = match place(&self.job, &joins) {
            Ok(placement) => placement,
            Err(e) => return self.fail(now, start(e.to_string()), out),
        };
        self.step_all(Node::placed);
        for place in &placement.nodes {
            out.send(place.partition, HubMessage::Place(Box::new(place.clone())));
        }
        self.tell_placed(joins);
        self.phase = JobPhase::Running(Met::AtHub(placement));
        self.point(now, 0, None, "all joined");
    }

    /// A node knows its place by what the tasks exchanged through Spark.
    pub(super) fn met(&mut self, now: Instant, partition: u32, join: Join) {
        self.step(partition, |node| (node.met(now, join), ()));
        if !self.phase.met_through_spark() {
            return;
        }
        self.step_all(Node::excused);
        self.point(now, 0, None, "all joined");
        // Of those that didn't come to the hub no progress will be heard.
        if self.known() < self.nodes.len() && !self.job.policy.hang_timeout.is_zero() {
            let missing = self.missing();
            self.announce(format!(
                "[phalanx] a hang of this run will not be noticed: {missing} can't connect to the driver"
            ));
        }
    }

    /// Whether tasks join, and this one's has no place yet.
    pub(super) fn waits_for_place(&self, partition: u32) -> bool {
        let unplaced = self.nodes.get(&partition).is_some_and(Node::is_unplaced);
        unplaced && matches!(self.phase, JobPhase::Joining(_))
    }

    /// When the tasks that are there are told to exchange through Spark, too, and when joining fails.
    fn join_deadlines_of(&self) -> Option<(Option<Instant>, Instant)> {
        let JobPhase::Joining(joining) = &self.phase else { return None };
        let policy = &self.job.policy;
        let waits = joining.first_join.filter(|_| joining.way == Way::AtHub);
        let fallback = waits.map(|first| first + policy.connect_timeout + FALLBACK_MARGIN);
        Some((fallback, joining.since + policy.join_timeout))
    }

    pub(super) fn join_due(&self) -> Option<Instant> {
        let (fallback, failure) = self.join_deadlines_of()?;
        Some(fallback.map_or(failure, |at| at.min(failure)))
    }

    pub(super) fn join_deadlines(&mut self, now: Instant, out: &mut Outbox) {
        let Some((fallback, failure)) = self.join_deadlines_of() else { return };
        if fallback.is_some_and(|at| at <= now) {
            self.use_fallback(out);
        }
        if failure > now {
            return;
        }
        // STATE-4: one that was there has not come back, and no other task came in its stead.
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

    fn use_fallback(&mut self, out: &mut Outbox) {
        if let JobPhase::Joining(joining) = &mut self.phase {
            joining.way = Way::ThroughSpark;
        }
        let (missing, after) = (self.missing(), self.job.policy.connect_timeout + FALLBACK_MARGIN);
        self.reason(
            Level::Warn,
            format!(
                "{missing} not at the hub after {after:.0?}; the tasks ask through Spark who can't reach it"
            ),
        );
        for (partition, node) in &self.nodes {
            if matches!(node, Node::Joined { .. }) {
                out.send(*partition, HubMessage::UseFallback);
            }
        }
    }
}
