//! The guard: a tiny process between a host (a JVM, a Python worker, a notebook) and its ranks, that makes sure that
//! no rank outlives the host's wish, or the host.
//!
//! ```text
//! host --- control socket (the guard's stdin) --- phalanx-guard --- rank 0, rank 1, ...
//!    \______________ the pipes of output and notes _______________/
//! ```
//!
//! Why a process: a host that is killed can do nothing any more, a JVM can't be a subreaper without taking in what
//! its own libraries detach, and the death signal of a rank hangs on the *thread* that started it, which in a JVM may
//! end at any time. The guard has one thread, is the subreaper of everything below it, and is the only one to wait
//! for its children: so a child's process id is that child's until the guard itself reaps it.
//!
//! The host's end is [`Guard`]. One guard serves one attempt: after `stop` it starts nothing more, and after `Empty`
//! it exits.

mod control;
mod forked;
mod host;
mod listener;
mod phase;
mod process;
mod server;
mod tree;
mod wire;

pub use forked::serve_forked;
pub use host::{Guard, GuardEvent, GuardOptions, RankPipes};
pub use server::main;
pub(crate) use tree::started_at;
pub use wire::{ExitHow, Launch};
