//! Collective operations on slices between the ranks of a group: shared memory inside a host, TCP between hosts.

mod activity;
mod between;
mod call;
mod dtype;
mod exchange;
mod failure;
mod flag;
mod group;
mod handshake;
mod hierarchy;
mod host;
mod join;
mod kernels;
mod mail;
mod messages;
mod operations;
mod peers;
mod probe;
mod shm;
mod tcp;
mod topology;
mod wait;

/// What the flag protocol is made of; its model replaces it.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use call::{CALL_WORDS, Call};

pub use activity::{Activity, ActivityReader, read_activity};
pub use call::Operation;
pub use dtype::{DType, Element, ReduceOp};
pub use exchange::{DirectoryExchange, Exchange, MemoryExchange};
pub use group::{Aborter, Group, GroupOptions};
pub use topology::Topology;
