//! Scores batches: tasks of Spark give them to the process that has a model, and take what the model makes of them.
//!
//! ```text
//! task --- connection (a seqpacket socket: JSON, and descriptors) --- model's process --- model
//! task ---/      \ memory of a batch, and of its results (memfd) ----/
//! ```
//!
//! There is one such process for each owner (an executor), model and device, below a guard, and all tasks of the owner
//! share it. It is met by name ([`phalanx_supervisor::warm_pool::meet`]); whoever needs it and finds none starts it.
//!
//! - SCORE-1 (own-batches): a batch is one task's. What a task takes is what the model made of its batches, each once,
//!   in their order.
//! - SCORE-2 (bounded): a task has [`MOST_SLOTS`] batches under way at most, and there is no other memory of batches.
//! - SCORE-3 (nothing-left): whichever end goes, however it goes, the memory of its batches goes with it. The model's
//!   process ends with its owner, after its idle time, or when memory is short and no task is connected.
//! - SCORE-4 (again-once): where the process ends in the midst of a task's batches, the task has it started again and
//!   gives it these batches again, once. Where that one ends before it has answered, the task learns why as far as
//!   that is known.
//! - SCORE-5 (fair): of two tasks that both have batches waiting neither has two computed in a row.
//! - SCORE-6 (checked): neither end touches memory by what the other says before it has checked that against the
//!   memory's size, and the memory can't shrink.
//! - SCORE-7 (own-user): both ends are processes of the same user.
//! - SCORE-27 (not-for-nobody): where the model hangs, in a batch or while it is made, and the task that this is for
//!   has been gone for 30 s, or for the idle time if that is shorter, the process ends. The next task starts another.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod batch;
mod computing;
#[doc(hidden)]
pub mod fuzz;
mod memory;
mod pace;
mod server;
mod shared;
mod socket;
mod task;
mod turns;
mod watchdog;
mod wire;

pub use batch::{Batch, Column, MOST_SLOTS, NewColumn};
pub use server::{Given, ModelServer, Work};
pub use shared::{Room, SharedMemory};
pub use task::{Answer, Caller, Connection, Done, Results, Start};
pub use wire::Trouble;
