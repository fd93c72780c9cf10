//! Collective operations on slices between the ranks of a group: shared memory inside a host, TCP between hosts.
//!
//! Ranks find one another over a [`Store`], find out by trying which ranks share memory, and then call the same
//! operations in the same order. Results are equal to the bit on all ranks, and from run to run for a given number of
//! ranks on given hosts. Every operation ends: with its result, at its deadline, or, when a rank dies, within 1.5 s
//! with an error that names that rank. One thread at a time uses a group. Other threads may send and receive messages,
//! abort it, or look what it is doing. `docs/collectives.md` says which algorithm is used when.
//!
//! The rules that the modules promise have ids (`GROUP-38`, `GROUP-75`), which the tests that prove them quote.
//!
//! ```
//! use phalanx_collective::{Group, GroupOptions, HashStore, ReduceOp};
//!
//! let store = HashStore::default();
//! std::thread::scope(|ranks| {
//!     for rank in 0..3 {
//!         let mut store = store.clone();
//!         ranks.spawn(move || {
//!             let mut group = Group::join(GroupOptions::new(rank, 3, "example"), &mut store)?;
//!             let mut gradients = vec![rank as f32; 1000];
//!             group.all_reduce_of(&mut gradients, ReduceOp::Average)?;
//!             assert!(gradients.iter().all(|gradient| *gradient == 1.0));
//!             phalanx_types::Result::Ok(())
//!         });
//!     }
//! });
//! ```
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod activity;
mod bell;
mod bootstrap;
mod call;
mod door;
mod dtype;
mod failure;
mod flag;
pub mod forks;
mod futex;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod hierarchical;
mod inter_host;
mod intra_host;
mod job_key;
mod kernels;
mod operations;
mod p2p;
mod peers;
mod shm;
mod wait;

/// What the flag protocol and the gate are made of; their models replace it.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    pub(crate) use crate::futex::{sleep_while, wake_all};
}

use call::{CALL_WORDS, Call};

pub use activity::{Activity, ActivityReader, read_activity};
pub use bell::Rings;
pub use bootstrap::store::{FileStore, HashStore, Store};
pub use bootstrap::topology::Topology;
pub use call::Operation;
pub use dtype::{DType, Element, ReduceOp};
pub use group::{Aborter, Group, GroupOptions};
pub use job_key::{job_encryption, job_key};
pub use p2p::messenger::Messenger;

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    mod system_calls;
}
