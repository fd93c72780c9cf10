//! What gives the hub's events their meaning, and what it may order.

use std::fmt::Debug;
use std::io::Write;
use std::time::Instant;

use phalanx_types::message::{HubMessage, NodeMessage};
use phalanx_types::{Attempt, Error, Result, SparkTask};

/// Orders that a handler wants sent.
#[derive(Debug, Default)]
pub struct Outbox {
    orders: Vec<(u32, HubMessage)>,
}

impl Outbox {
    /// Sends `message` to the node of `partition`, if it is connected.
    pub fn send(&mut self, partition: u32, message: HubMessage) {
        self.orders.push((partition, message));
    }

    /// The orders so far; for tests of handlers.
    pub fn take(&mut self) -> Vec<(u32, HubMessage)> {
        std::mem::take(&mut self.orders)
    }
}

/// Whether a task may have the seat of its partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seat {
    /// It has it, and nobody else had it before.
    Yours,
    /// It has it from now on, in the place of another task.
    Inherited,
    /// Another task has it, and this one may get it later.
    Spare,
    /// The run needs nobody any more, for this reason.
    Over(String),
    /// It never will, for this reason, and has to fail.
    Never(String),
}

/// Where a result goes while it arrives, over one connection after the other. Dropped before it was kept, it leaves
/// nothing.
pub trait Arriving: Write + Send + Debug {
    /// All of it has been written.
    ///
    /// # Errors
    /// If it can't be kept.
    fn keep(self: Box<Self>) -> Result<()>;
}

/// Opens the file of a result, on the thread that writes it; `None` if the result is there already, and is passed over.
pub type Opening = Box<dyn FnOnce() -> Result<Option<Box<dyn Arriving>>> + Send>;

/// What the hub's events mean. Called on the hub's thread; must not block.
pub trait Handler: Send + 'static {
    /// What the owner of the hub may tell the handler.
    type Command: Send + 'static;

    /// Whether a connection for this attempt may be opened; else it is refused, as one without the token.
    fn admits(&self, attempt: Attempt) -> bool;
    /// Whether this attempt is the present one: the results of others, which are on their way yet, are passed over.
    fn is_present(&self, attempt: Attempt) -> bool;
    /// Whether a task may have the seat of a partition. Asked when it connects, and while it waits when seats have
    /// changed.
    fn seat(&mut self, now: Instant, partition: u32, task: SparkTask, out: &mut Outbox) -> Seat;
    /// Whether output of this node of a partition is shown.
    fn is_seated(&self, partition: u32, instance: u64) -> bool;
    /// Another number than before if one that waits for a seat is to be asked about again.
    fn seats(&self) -> u64;
    /// So many tasks wait for a seat; told before each tick.
    fn spares(&mut self, _waiting: usize) {}
    /// A node told a fact, over its connection for an attempt.
    fn message(
        &mut self,
        now: Instant,
        partition: u32,
        attempt: Attempt,
        message: NodeMessage,
        out: &mut Outbox,
    );
    /// The control connection of a node is gone.
    fn disconnected(&mut self, now: Instant, partition: u32, out: &mut Outbox);
    /// A node's connection for output opened; how many bytes of its log of each rank have arrived before?
    fn logs_opened(&mut self, partition: u32) -> Vec<(u32, u64)>;
    /// A node's connection for output is closed and everything on it was delivered.
    fn logs_closed(&mut self, partition: u32);
    /// Output of a rank, over a node's connection of this attempt, at an offset of that node's log of the rank.
    fn output(&mut self, partition: u32, attempt: Attempt, rank: u32, offset: u64, bytes: &[u8]);
    /// A rank's live view skips to an offset of the node's log; `notice` says so.
    fn skip(&mut self, partition: u32, attempt: Attempt, rank: u32, resume_at: u64, notice: &str);
    /// Whether output can be taken at the moment.
    fn takes_output(&self) -> bool;
    /// Where a rank's result goes that begins to arrive; `None` if it is of another attempt, and is passed over.
    ///
    /// # Errors
    /// If no result is wanted; the connection is then closed.
    fn result_begins(&mut self, rank: u32, attempt: Attempt) -> Result<Option<Opening>>;
    /// A rank's result can't be kept; the rest of it is passed over.
    fn result_lost(&mut self, now: Instant, rank: u32, why: &Error, out: &mut Outbox);
    /// The owner says something.
    fn command(&mut self, now: Instant, command: Self::Command, out: &mut Outbox);
    /// Time passes; when should it be told next?
    fn tick(&mut self, now: Instant, out: &mut Outbox) -> Option<Instant>;
}
