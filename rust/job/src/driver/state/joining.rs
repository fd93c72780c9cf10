//! How tasks join (again and again where connections break), which places they get, and what follows when that takes
//! too long, by the clock in `join_clock`.

use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::{Attempt, Gang, Join, place};

use super::job_state::{JobState, start};
use super::join_clock::{StageLook, TooLate};
use super::news::Point;
use super::node::{Arrival, Node};
use super::phase::JobPhase;

impl JobState {
    pub(super) fn join(&mut self, now: Instant, partition: u32, mut join: Join, out: &mut Outbox) {
        join.partition = partition;
        self.cooldown.joined(&join.host);
        if let JobPhase::Joining(joining) = &mut self.phase
            && !std::mem::replace(&mut joining.has_begun, true)
        {
            joining.clock.joined(now);
            self.point(now, 0, Point::FirstJoin);
        }
        let arrival = self.step(partition, |node| node.joined(now, join));
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
        self.end_seats_beside();
        self.announce_placed(joins);
        self.phase = JobPhase::Running(placement);
        self.point(now, 0, Point::AllJoined);
    }

    /// Whether tasks join, and this one's has no place yet.
    pub(super) fn waits_for_place(&self, partition: u32) -> bool {
        let unplaced = self.nodes.get(&partition).is_some_and(Node::is_unplaced);
        unplaced && matches!(self.phase, JobPhase::Joining(_))
    }

    /// Somebody has looked at Spark: how the stage that was submitted for `attempt` stands. One that was submitted for
    /// an earlier attempt has its tasks, and says nothing of the present one.
    pub fn stage_seen(&mut self, now: Instant, attempt: Attempt, look: StageLook) {
        self.last_look = Some(look);
        let (present, tasks, gang) = (self.attempts.present, self.job.tasks, self.job.policy.gang);
        let JobPhase::Joining(joining) = &mut self.phase else { return };
        if attempt != present {
            return;
        }
        joining.clock.look(now, tasks, gang, look);
        let waits = joining.clock.free(tasks).is_some();
        if waits && !std::mem::replace(&mut joining.told, true) {
            self.reason(Level::Info, self.status());
        }
    }

    /// `waiting for 4 slots; 2 are free`: that the stage waits for slots which others hold, while it does.
    pub fn waits_for_slots(&self) -> Option<String> {
        let JobPhase::Joining(joining) = &self.phase else { return None };
        let free = joining.clock.free(self.job.tasks)?;
        let (noun, verb) =
            (if self.job.tasks == 1 { "slot" } else { "slots" }, if free == 1 { "is" } else { "are" });
        Some(format!("waiting for {} {noun}; {free} {verb} free", self.job.tasks))
    }

    fn join_end(&self) -> Option<(Instant, TooLate)> {
        let JobPhase::Joining(joining) = &self.phase else { return None };
        Some(joining.clock.due(self.job.policy.join_limit(), self.job.policy.queue_timeout))
    }

    /// When joining fails.
    pub(super) fn join_due(&self) -> Option<Instant> {
        self.join_end().map(|(at, _)| at)
    }

    pub(super) fn join_deadline(&mut self, now: Instant, out: &mut Outbox) {
        let Some((_, why)) = self.join_end().filter(|(due, _)| *due <= now) else { return };
        if let TooLate::Queued { free } = why {
            return self.fail(now, start(self.no_slots(free)), out);
        }
        // DRIVER-26: one that was there has not come back, and no other task came in its stead.
        let vanished = self.nodes.iter().filter(|(_, node)| node.has_vanished());
        let first = vanished.filter_map(|(partition, node)| Some((node.last_heard()?, *partition))).min();
        if let Some((since, partition)) = first {
            let why = format!(
                "it left before all tasks had joined, and neither it nor a replacement joined within {:.0?}",
                self.job.policy.join_limit()
            );
            self.node_lost(now, partition, since, &why, out);
        } else {
            self.fail(now, start(self.too_few_joined()), out);
        }
    }

    fn too_few_joined(&self) -> String {
        let (limit, known, tasks) = (self.job.policy.join_limit(), self.known(), self.job.tasks);
        let missing = self.missing();
        let slots = match &self.phase {
            JobPhase::Joining(joining) => joining.clock.slots(),
            _ => None,
        };
        match (self.job.policy.gang, slots) {
            (Gang::Tasks, Some(slots)) if slots < tasks => format!(
                "Spark did not bring the executors for {tasks} tasks within {limit:.0?} (spark.phalanx.gang.wait): \
                 there are {slots} task slots, and {} are missing. The others are given back. Can the cluster grow so \
                 far? If not, lower num_processes; if it takes longer, raise the setting",
                tasks - slots
            ),
            _ => format!(
                "{missing} did not join within {limit:.0?}; {known} of {tasks} tasks have joined. Are the executors \
                 up, and can they connect to the driver?"
            ),
        }
    }

    fn no_slots(&self, free: u32) -> String {
        let verb = if free == 1 { "was" } else { "were" };
        format!(
            "Spark did not have {} free task slots at once within {:.0?} (spark.phalanx.queueTimeout); \
             {free} {verb} free at the end. Wait for the jobs that hold the others, lower num_processes, or \
             raise the setting",
            self.job.tasks, self.job.policy.queue_timeout
        )
    }
}
