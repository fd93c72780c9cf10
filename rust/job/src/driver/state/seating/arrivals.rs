//! Tasks come for the seats of partitions.

use std::time::Instant;

use phalanx_rendezvous::{Outbox, Seat};
use phalanx_types::message::HubMessage;
use phalanx_types::{Gang, SparkTask};

use super::seats::Jobs;
use crate::driver::state::job_state::JobState;

impl JobState {
    /// Whether this task may have the seat of `partition`, now that it comes or seats have changed.
    pub fn seat(&mut self, now: Instant, partition: u32, task: SparkTask, out: &mut Outbox) -> Seat {
        let over = self.outcome().is_some().then_some("the job is over");
        let jobs = match self.job.policy.gang {
            Gang::Barrier => Jobs::Together,
            Gang::Tasks if self.has_seats_beside(partition) => Jobs::Beside,
            Gang::Tasks => Jobs::Own,
        };
        let Some(node) = self.nodes.get(&partition) else { return Seat::Yours }; // a carrier
        let is_superseded = over.is_none() && self.seats.is_superseded(partition, jobs, task);
        if is_superseded && node.had_its_place() {
            let before = self.attempts.present;
            self.superseded(now, partition, out);
            self.conclude(now, out);
            if self.attempts.present != before {
                return self.seat(now, partition, task, out);
            }
        }
        let Some(node) = self.nodes.get(&partition) else { return Seat::Yours };
        let over = self.outcome().is_some().then_some("the job is over");
        let seat = self.seats.ask(partition, node, over, jobs, task);
        let is_new = matches!(seat, Seat::Yours | Seat::Inherited) && !self.seats.is_held_by(partition, task);
        if is_new && self.waits_aside(now, partition, task) {
            return Seat::Spare; // DRIVER-64
        }
        if seat == Seat::Inherited {
            // Who joined here is another.
            self.step(partition, |node| (node.left(), ()));
        }
        if matches!(seat, Seat::Yours | Seat::Inherited) {
            self.seats.give(partition, task);
        }
        seat
    }

    /// Whether this node has the seat of `partition`, or nobody has it.
    pub fn is_seated(&self, partition: u32, instance: u64) -> bool {
        self.seats.is_of(partition, instance)
    }

    /// What a node is told that was lost and is there: where tasks are replaced its seat is needed, or another's, so
    /// that its task has to fail for Spark to start it again.
    pub(in crate::driver::state) fn given_up(&self) -> Option<HubMessage> {
        let goes_on = self.replaces_tasks() && (self.budget_left() || self.may_resize());
        goes_on.then(|| HubMessage::GivenUp { reason: "the driver has given up its task".into() })
    }

    /// Another number than before when a spare may have a seat.
    pub fn seats(&self) -> u64 {
        self.seats.version()
    }
}
