//! Collective operations on slices between the ranks of a group: shared memory inside a host, TCP between hosts.
//!
//! Ranks find one another over an [`Exchange`], find out by trying who shares memory with whom, and then call the same
//! operations in the same order. Results are equal to the bit on all ranks, and from run to run for a given number of
//! ranks on given hosts. Every operation ends: with its result, at its deadline, or, when a rank dies, within a second,
//! with an error that names that rank. A group is used by one thread at a time; others may abort it or look what it is
//! doing. `docs/collectives.md` says which algorithm is used when.
//!
//! The rules that the modules promise have ids (`GRO-2`, `SHM-3`), which the tests that prove them quote.
//!
//! ```
//! use phalanx_collective::{Group, GroupOptions, MemoryExchange, ReduceOp};
//!
//! let exchange = MemoryExchange::default();
//! std::thread::scope(|ranks| {
//!     for rank in 0..3 {
//!         let mut exchange = exchange.clone();
//!         ranks.spawn(move || {
//!             let mut group = Group::join(GroupOptions::new(rank, 3, "example"), &mut exchange)?;
//!             let mut gradients = vec![rank as f32; 1000];
//!             group.all_reduce_of(&mut gradients, ReduceOp::Average)?;
//!             assert!(gradients.iter().all(|gradient| *gradient == 1.0));
//!             phalanx_types::Result::Ok(())
//!         });
//!     }
//! });
//! ```

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
mod reduce_scatter;
mod shm;
mod stream;
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
