//! Warm pools: Python processes that have imported torch, from which guards and their ranks are forked in milliseconds.
//!
//! ```text
//! client --- phalanx-guard (cold) --- pool --- phalanx-guard (forked, for one job) --- rank 0, rank 1, ...
//!    \__________ requests, answers ____/            /
//!     \_________________ control socket ____________/
//! ```
//!
//! - POOL-10 (ends-with-owner): a pool, and all below it, ends with its owner, by the pool's own cold guard (GUARD-8).
//!   The owner is the client, or the client's parent, whose children then share the pool.
//! - POOL-11 (full-guard): a forked guard obeys GUARD-5 to GUARD-13 like any other, and needs no pool once it serves.
//! - POOL-12 (same-start): a rank is forked only if the pool was started with the same program, variables and limits.
//! - POOL-13 (only-warmth): if something is wrong with a pool, callers start the rank cold. It loses its warmth and
//!   nothing else.
//! - POOL-14 (two-pools): a process uses two pools at most. A pool without a job for the idle time-out ends by itself.
//! - POOL-15 (kept-by-owner): a process that is kept for a name is one for all processes of an owner. It ends with that
//!   or when it likes. Where its owner is another process than the one that started it, it needs neither that nor the
//!   pool that it was forked from.

mod fingerprint;
mod kept;
pub(crate) mod message;
mod options;
mod process;
mod registry;
mod sharing;

pub use fingerprint::shapes;
pub use kept::{Kept, end_kept, kept_listener, meet, start_kept};
pub use options::{IMPORTS, LATER_IMPORTS, PoolOptions};
pub use registry::{Usage, end_pools, pool_usage, prestart, warm_guard};
