//! Warm pools: Python processes that have imported torch, from which guards and their ranks are forked in milliseconds.
//!
//! ```text
//! host --- phalanx-guard (cold) --- pool --- phalanx-guard (forked, for one job) --- rank 0, rank 1, ...
//!    \_________ requests, answers ___/            /
//!     \_______________ control socket ____________/
//! ```
//!
//! - POOL-1: a pool, and all below it, ends with its owner, by the pool's own cold guard (SUP-4). The owner is the host
//!   process; or its parent, whose children then share the pool.
//! - POOL-2: a forked guard obeys SUP-1 to SUP-9 as any other, and needs no pool once it serves.
//! - POOL-3: a rank is forked only where the pool was started with the same program, variables and limits.
//! - POOL-4: whatever is wrong with a pool costs a rank its warmth and nothing else: callers start it cold.
//! - POOL-5: a process uses two pools at most; one without a job for the idle time-out ends by itself.

mod fingerprint;
mod launch;
mod meeting;
mod message;
mod process;
mod registry;

pub use fingerprint::shapes;
pub(crate) use launch::whole;
pub use process::PoolOptions;
pub(crate) use process::{Pool, Refusal};
pub use registry::{Usage, end_pools, pool_usage, prestart, warm_guard};
