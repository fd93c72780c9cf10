//! Tasks come for the seats of partitions.

use std::time::Instant;

use phalanx_rendezvous::{Outbox, Seat};
use phalanx_types::SparkTask;

use super::job_state::JobState;

impl JobState {
    /// Whether this task may have the seat of `partition`, now that it comes or seats have changed.
    pub fn seat(&mut self, now: Instant, partition: u32, task: SparkTask, out: &mut Outbox) -> Seat {
        let over = self.outcome().is_some().then_some("the job is over");
        let Some(node) = self.nodes.get(&partition) else { return Seat::Yours }; // a carrier
        let had_its_place = node.had_its_place();
        let seat = self.seats.ask(partition, node, over, task);
        if seat == Seat::Inherited && had_its_place {
            self.node_lost(now, partition, now, "Spark has started its task again", out);
            self.conclude(now, out);
        }
        seat
    }

    /// Another number than before when a spare may have a seat.
    pub fn seats(&self) -> u64 {
        self.seats.version()
    }
}
