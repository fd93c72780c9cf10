//! Which task has the seat of a partition: that is, whose words are those of its node.
//!
//! DRIVER-50 (first-keeps): who has a seat keeps it while its node lives, whoever else comes. Another task, such as a
//! copy that Spark starts by speculation, or one that it starts again too early, is a spare: it waits.
//! DRIVER-51 (later-try): a task of a later stage, or of a later try of the stage, has the seat, since Spark ends the
//! tasks before; those have it no more. In a gang of tasks the others stay then, and it waits until the attempt is over
//! in which the one before had its place.
//! DRIVER-52 (seat-falls-free): a seat is free when its task went before it had its place, and when an attempt begins
//! without its node.

use std::collections::BTreeMap;

use phalanx_rendezvous::Seat;
use phalanx_types::SparkTask;

use super::node::{Contact, Node};

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

    /// Whether `task` may have the seat of `partition`, whose node is this one. `over` is why the job needs no other
    /// task, if so; `stays` says that the other tasks stay where this one's node is lost.
    pub(super) fn ask(
        &self,
        partition: u32,
        node: &Node,
        over: Option<&str>,
        stays: bool,
        task: SparkTask,
    ) -> Seat {
        decide(self.holders.get(&partition), node, over, stays, task)
    }

    /// Whether Spark ends who has the seat of `partition`, since it started `task`.
    pub(super) fn is_superseded(&self, partition: u32, task: SparkTask) -> bool {
        self.holders.get(&partition).is_some_and(|holder| task.supersedes(&holder.task))
    }

    /// It has the seat from now on.
    pub(super) fn give(&mut self, partition: u32, task: SparkTask) {
        self.holders.insert(partition, Holder { task, is_connected: true });
    }

    /// Whether this node has the seat, or nobody has it.
    pub(super) fn is_of(&self, partition: u32, instance: u64) -> bool {
        self.holders.get(&partition).is_none_or(|holder| holder.task.instance == instance)
    }

    /// The partition whose seat this task has, by Spark's task attempt id.
    pub(super) fn partition_of(&self, task: u64) -> Option<u32> {
        self.holders.iter().find(|(_, holder)| holder.task.id == task).map(|(partition, _)| *partition)
    }

    /// Who has the seat says something.
    pub(super) fn heard(&mut self, partition: u32) {
        if let Some(holder) = self.holders.get_mut(&partition) {
            holder.is_connected = true;
        }
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
fn decide(holder: Option<&Holder>, node: &Node, over: Option<&str>, stays: bool, task: SparkTask) -> Seat {
    let Some(Holder { task: before, is_connected }) = holder else { return Seat::Yours };
    if before.instance == task.instance {
        return Seat::Yours;
    }
    if let Some(reason) = over {
        return Seat::Over(reason.into());
    }
    if before.supersedes(&task) {
        return Seat::Never("Spark has started its stage again".into()); // DRIVER-51
    }
    match node {
        Node::Absent | Node::Joined { .. } | Node::Called { .. } if task.supersedes(before) => {
            Seat::Inherited // DRIVER-51
        }
        Node::Absent | Node::Joined { contact: Contact::Broken { .. }, .. } if !is_connected => {
            Seat::Inherited // DRIVER-52
        }
        _ if task.supersedes(before) && !stays => Seat::Inherited, // DRIVER-51
        _ => Seat::Spare,                                          // DRIVER-50
    }
}
