//! Which task has the seat of a partition: that is, whose words are those of its node.
//!
//! DRIVER-50 (first-keeps): who has a seat keeps it while its node lives, whoever else comes. Another task, such as a
//! copy that Spark starts by speculation, or one that it starts again too early, is a spare: it waits.
//! DRIVER-51 (later-try): a task of a later stage, or of a later try of the stage, has the seat, since Spark ends the
//! tasks before; those have it no more. In a gang of tasks the others stay then, and it waits until the attempt is over
//! in which the one before had its place. A seat that is submitted beside another (DRIVER-64) ends none.
//! DRIVER-52 (seat-falls-free): a seat is free when its task went before it had its place, and when an attempt begins
//! without its node.

use std::collections::BTreeMap;

use phalanx_rendezvous::Seat;
use phalanx_types::SparkTask;

use crate::driver::state::node::{Contact, Node};

/// Who has a seat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Holder {
    task: SparkTask,
    is_connected: bool,
}

/// What the seat of a partition is to Spark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::driver::state) enum Jobs {
    /// A task of a stage with the others': it goes with them.
    Together,
    /// A job: the others stay where this one's node is lost.
    Own,
    /// Several jobs. Spark ends none since another has begun.
    Beside,
}

impl Jobs {
    /// Whether Spark ends `before`, since it started `task`.
    fn supersedes(self, task: SparkTask, before: SparkTask) -> bool {
        (self != Jobs::Beside || task.stage == before.stage) && task.supersedes(&before)
    }
}

/// Who has which seat.
#[derive(Debug, Default)]
pub(in crate::driver::state) struct Seats {
    holders: BTreeMap<u32, Holder>,
    version: u64,
}

impl Seats {
    /// Something changed.
    pub(in crate::driver::state) fn touch(&mut self) {
        self.version += 1;
    }

    /// Whether `task` may have the seat of `partition`, whose node is this one. `over` is why the job needs no other
    /// task, if so.
    pub(in crate::driver::state) fn ask(
        &self,
        partition: u32,
        node: &Node,
        over: Option<&str>,
        jobs: Jobs,
        task: SparkTask,
    ) -> Seat {
        decide(self.holders.get(&partition), node, over, jobs, task)
    }

    /// Whether Spark ends who has the seat of `partition`, since it started `task`.
    pub(in crate::driver::state) fn is_superseded(
        &self,
        partition: u32,
        jobs: Jobs,
        task: SparkTask,
    ) -> bool {
        self.holders.get(&partition).is_some_and(|holder| jobs.supersedes(task, holder.task))
    }

    /// Whether this task has the seat.
    pub(in crate::driver::state) fn is_held_by(&self, partition: u32, task: SparkTask) -> bool {
        self.holders.get(&partition).is_some_and(|holder| holder.task.instance == task.instance)
    }

    /// The Spark stage of who has the seat.
    pub(in crate::driver::state) fn stage_of(&self, partition: u32) -> Option<u32> {
        self.holders.get(&partition).map(|holder| holder.task.stage)
    }

    /// It has the seat from now on.
    pub(in crate::driver::state) fn give(&mut self, partition: u32, task: SparkTask) {
        self.holders.insert(partition, Holder { task, is_connected: true });
    }

    /// Whether this node has the seat, or nobody has it.
    pub(in crate::driver::state) fn is_of(&self, partition: u32, instance: u64) -> bool {
        self.holders.get(&partition).is_none_or(|holder| holder.task.instance == instance)
    }

    /// The partition whose seat this task has, by Spark's task attempt id.
    pub(in crate::driver::state) fn partition_of(&self, task: u64) -> Option<u32> {
        self.holders.iter().find(|(_, holder)| holder.task.id == task).map(|(partition, _)| *partition)
    }

    /// The task that has the seat, by Spark's task attempt id.
    pub(in crate::driver::state) fn task_of(&self, partition: u32) -> Option<u64> {
        self.holders.get(&partition).map(|holder| holder.task.id)
    }

    /// Who has the seat says something.
    pub(in crate::driver::state) fn heard(&mut self, partition: u32) {
        if let Some(holder) = self.holders.get_mut(&partition) {
            holder.is_connected = true;
        }
    }

    /// Grows with each change after which a spare may have a seat.
    pub(in crate::driver::state) fn version(&self) -> u64 {
        self.version
    }

    /// The connection of who has this seat broke.
    pub(in crate::driver::state) fn disconnected(&mut self, partition: u32) {
        if let Some(holder) = self.holders.get_mut(&partition) {
            holder.is_connected = false;
        }
        self.touch();
    }

    /// An attempt begins: whoever had these seats is gone.
    pub(in crate::driver::state) fn free(&mut self, is_free: impl Fn(u32) -> bool) {
        let gone = self.holders.iter_mut().filter(|(partition, _)| is_free(**partition));
        gone.for_each(|(_, holder)| holder.is_connected = false);
        self.touch();
    }
}

/// As [`Seats::ask`] says.
fn decide(holder: Option<&Holder>, node: &Node, over: Option<&str>, jobs: Jobs, task: SparkTask) -> Seat {
    let Some(Holder { task: before, is_connected }) = holder else { return Seat::Yours };
    if before.instance == task.instance {
        return Seat::Yours;
    }
    if let Some(reason) = over {
        return Seat::Over(reason.into());
    }
    if jobs.supersedes(*before, task) {
        return Seat::Never("Spark has started its stage again".into()); // DRIVER-51
    }
    match node {
        Node::Absent | Node::Joined { .. } | Node::Called { .. } if jobs.supersedes(task, *before) => {
            Seat::Inherited // DRIVER-51
        }
        Node::Absent | Node::Joined { contact: Contact::Broken { .. }, .. } if !is_connected => {
            Seat::Inherited // DRIVER-52
        }
        _ if jobs.supersedes(task, *before) && jobs == Jobs::Together => Seat::Inherited, // DRIVER-51
        _ => Seat::Spare,                                                                 // DRIVER-50
    }
}
