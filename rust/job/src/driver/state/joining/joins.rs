//! How tasks join (again and again where connections break), which places they get, and what follows when that takes
//! too long, by the clock in `join_clock`.

use std::time::Instant;

use log::Level;
use phalanx_rendezvous::Outbox;
use phalanx_types::message::HubMessage;
use phalanx_types::{Attempt, Gang, Join, place};

use super::join_clock::{StageLook, TooLate};
use crate::driver::state::job_state::{JobState, start};
use crate::driver::state::news::Point;
use crate::driver::state::node::{Arrival, Node};
use crate::driver::state::phase::JobPhase;
use crate::driver::state::ranks::Ranks;

impl JobState {
    pub(in crate::driver::state) fn join(
        &mut self,
        now: Instant,
        partition: u32,
        mut join: Join,
        out: &mut Outbox,
    ) {
        join.partition = partition;
        self.cooldown.joined(&join.host);
        if let JobPhase::Joining(joining) = &mut self.phase {
            joining.last_join = Some(now);
            if !std::mem::replace(&mut joining.has_begun, true) {
                joining.clock.joined(now);
                self.point(now, 0, Point::FirstJoin);
            }
        }
        if matches!(self.nodes.get(&partition), Some(Node::Absent)) {
            self.sizes.came(now, partition);
        }
        let arrival = self.step(partition, |node| node.joined(now, join));
        let is_newcomer = self.nodes.get(&partition).is_some_and(|node| self.is_newcomer(node));
        match (&self.phase, arrival) {
            (JobPhase::Running(_) | JobPhase::Stopping(_), Some(Arrival::New)) if is_newcomer => {
                self.welcome(partition, out);
            }
            (JobPhase::Stopping(_) | JobPhase::Over(_), _) | (JobPhase::Running(_), Some(Arrival::Late)) => {
                out.send(partition, HubMessage::Stop { reason: "the job is over".into() });
            }
            (JobPhase::Joining(_), _) => self.place_if_complete(now, out),
            (JobPhase::Running(placement), _) => {
                // It came back before it had read its place.
                if let Some(place) = placement.of(partition) {
                    out.send(partition, HubMessage::Place(Box::new(place.clone())));
                }
            }
        }
    }

    fn place_if_complete(&mut self, now: Instant, out: &mut Outbox) {
        let tasks = self.candidates(now);
        if self.may_begin_with(now, tasks.len()) {
            self.place(now, &tasks, out);
        }
    }

    fn place(&mut self, now: Instant, tasks: &[u32], out: &mut Outbox) {
        let joins: Vec<Join> =
            tasks.iter().filter_map(|partition| self.nodes.get(partition)?.waits().cloned()).collect();
        let first = self.sizes.oldest(tasks.iter().copied()).unwrap_or_default(); // DRIVER-68
        let placement = match place(&self.job, self.generation, first, &joins) {
            Ok(placement) => placement,
            Err(e) => return self.fail(now, start(e.to_string()), out),
        };
        for place in &placement.nodes {
            self.step(place.partition, |node| (node.placed(), ()));
            out.send(place.partition, HubMessage::Place(Box::new(place.clone())));
        }
        let world_size = placement.world_size();
        self.sizes.placed(self.generation, tasks.iter().copied(), world_size);
        if world_size != self.ranks.count() {
            self.ranks = Ranks::new(world_size, self.job.policy.hang_timeout);
        }
        self.end_seats_beside();
        self.announce_placed(joins);
        self.phase = JobPhase::Running(placement);
        self.point(now, 0, Point::AllJoined(world_size));
        let waits = |node: &Node| node.waits().is_some() && self.is_newcomer(node);
        let others: Vec<u32> =
            self.nodes.iter().filter(|(_, node)| waits(node)).map(|(partition, _)| *partition).collect();
        others.into_iter().for_each(|partition| self.welcome(partition, out));
    }

    /// Whether this task has no place yet, and may get one.
    pub(in crate::driver::state) fn waits_for_place(&self, partition: u32) -> bool {
        let Some(node) = self.nodes.get(&partition) else { return false };
        node.is_unplaced() && (matches!(self.phase, JobPhase::Joining(_)) || self.is_newcomer(node))
    }

    /// Somebody has looked at Spark: how the stage that was submitted for `attempt` stands. One that was submitted for
    /// an earlier attempt has its tasks, and says nothing of the present one.
    pub fn stage_seen(&mut self, now: Instant, attempt: Attempt, look: StageLook) {
        self.last_look = Some(look);
        let (present, tasks, gang) = (self.attempts.present, self.job.least_tasks(), self.job.policy.gang);
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
        let tasks = self.job.least_tasks();
        let free = joining.clock.free(tasks)?;
        let (noun, verb) = (if tasks == 1 { "slot" } else { "slots" }, if free == 1 { "is" } else { "are" });
        Some(format!("waiting for {tasks} {noun}; {free} {verb} free"))
    }

    fn join_end(&self) -> Option<(Instant, TooLate)> {
        let JobPhase::Joining(joining) = &self.phase else { return None };
        Some(joining.clock.due(self.job.policy.join_limit(), self.job.policy.queue_timeout))
    }

    /// When joining fails, or the attempt begins with those that are there.
    pub(in crate::driver::state) fn join_due(&self, now: Instant) -> Option<Instant> {
        let begins = self.enough_at().filter(|at| *at > now);
        self.join_end().map(|(at, _)| at).into_iter().chain(begins).min()
    }

    pub(in crate::driver::state) fn join_deadline(&mut self, now: Instant, out: &mut Outbox) {
        if self.job.is_elastic() && matches!(self.phase, JobPhase::Joining(_)) {
            self.place_if_complete(now, out);
        }
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
        let (limit, known, tasks) = (self.job.policy.join_limit(), self.known(), self.job.least_tasks());
        let missing = self.missing();
        match (self.job.policy.gang, self.last_look) {
            (Gang::Tasks, Some(StageLook { slots, .. })) if slots < tasks => format!(
                "Spark did not bring the executors for {tasks} {} within {limit:.0?} (spark.phalanx.gang.wait): \
                 it has {slots} of {tasks} task slots, which are given back. Can the cluster grow so far? If not, \
                 lower num_processes; if it takes longer, raise the setting",
                if tasks == 1 { "task" } else { "tasks" }
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
            self.job.least_tasks(),
            self.job.policy.queue_timeout
        )
    }
}
