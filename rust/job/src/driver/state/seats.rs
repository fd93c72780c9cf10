//! Which task has the seat of a partition: that is, whose words are those of its node.
//!
//! DRIVER-50 (first-keeps): who has a seat keeps it while its node lives, whoever else comes. Another task, such as a
//! copy that Spark starts by speculation, or one that it starts again too early, is a spare: it waits.
//! DRIVER-51 (later-try): a task of a later stage, or of a later try of the stage, has the seat at once, since Spark
//! ends the tasks before. Those have it no more.
//! DRIVER-52 (seat-falls-free): a seat is free when its task went before it had its place, and when an attempt begins
//! without its node.

use std::collections::BTreeMap;

use phalanx_rendezvous::Seat;
use phalanx_types::SparkTask;

use super::node::Node;

/// Who has a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    task: SparkTask,
    is_connected: bool,
}

/// Who has which seat.
#[derive(Debug, Default)]
pub(super) struct Seats {
    holders: BTreeMap<u32, Holder>,
    version: u64,
}

impl Seats {
    /// Something changed.
    pub(super) fn touch(&mut self) {
        self.version += 1;
    }

    /// Whether `task` may have the seat of `partition`, whose node is this one; it has it then. `over` is why the job
    /// needs no other task, if so.
    pub(super) fn ask(&mut self, partition: u32, node: &Node, over: Option<&str>, task: SparkTask) -> Seat {
        let seat = decide(self.holders.get(&partition), node, over, task);
        if matches!(seat, Seat::Yours | Seat::Inherited) {
            self.holders.insert(partition, Holder { task, is_connected: true });
        }
        seat
    }

    /// Grows with each change after which a spare may have a seat.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// The connection of who has this seat broke.
    pub(super) fn disconnected(&mut self, partition: u32) {
        if let Some(holder) = self.holders.get_mut(&partition) {
            holder.is_connected = false;
        }
        self.touch();
    }

    /// An attempt begins: whoever had these seats is gone.
    pub(super) fn free(&mut self, is_free: impl Fn(u32) -> bool) {
        let gone = self.holders.iter_mut().filter(|(partition, _)| is_free(**partition));
        gone.for_each(|(_, holder)| holder.is_connected = false);
        self.touch();
    }
}

/// As [`Seats::ask`] says.
fn decide(holder: Option<&Holder>, node: &Node, over: Option<&str>, task: SparkTask) -> Seat {
    let Some(Holder { task: before, is_connected }) = holder else { return Seat::Yours };
    if before.instance == task.instance {
        return Seat::Yours;
    }
    if task.supersedes(before) {
        return Seat::Inherited; // DRIVER-51
    }
    if before.supersedes(&task) {
        return Seat::Over("Spark has started its stage again".into()); // DRIVER-51
    }
    if let Some(reason) = over {
        return Seat::Over(reason.into());
    }
    match *is_connected || !node.is_away() {
        true => Seat::Spare,      // DRIVER-50
        false => Seat::Inherited, // DRIVER-52
    }
}
