//! The plain data that every other crate shares: what a job is, where its ranks go, how it ends, and what the
//! driver and the nodes say to each other.
//!
//! Owns no socket, thread, file or process. Everything that crosses a process boundary is a serde type with
//! unknown fields refused, so that two versions that meet say so instead of guessing.
#![forbid(unsafe_code)]

pub mod deadline;
pub mod error;
pub mod failure;
pub mod job;
pub mod message;
pub mod placement;
pub mod stacks;

pub use deadline::Deadline;
pub use error::{Error, ErrorKind, Result, panic_text};
pub use failure::{Failure, FailureKind, RankEnd, RankError, RankReport, RankState};
pub use job::{Job, LogPolicy, Policy, WarmPolicy};
pub use placement::{Join, NodePlacement, Placement, RankPlace, place};
