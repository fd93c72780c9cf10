//! The guard: a tiny process between a client (a JVM, a Python worker, a notebook) and its ranks, that makes sure that
//! no rank outlives the client's wish, or the client.
//!
//! ```text
//! client --- control socket (the guard's stdin) --- phalanx-guard --- rank 0, rank 1, ...
//!    \____________ pipes of output, sockets of notes ________________/
//! ```
//!
//! Why is it a process? A client that is killed can do nothing any more. A JVM can't be a subreaper without taking in
//! what its own libraries detach. The death signal of a rank hangs on the *thread* that started it, and in a JVM a
//! thread may end at any time. The guard has one thread, and is the subreaper of everything below it. Only the guard
//! waits for its children, so a child's process id is that child's until the guard itself reaps it.
//! The client's end is [`Guard`]. One guard serves one attempt: after `stop` it starts nothing more, and after `Empty`
//! it exits.

mod client;
mod client_watch;
mod control;
mod event;
mod launch;
mod process;
mod reader;
mod server;
mod start;
mod state;
mod tree;
pub(crate) mod wire;

pub use client::{Guard, GuardOptions, RankPipeEnds, RankPipes};
pub use event::GuardEvent;
pub(crate) use launch::own_environment;
pub use launch::{Launch, python_program};
pub use server::{main, serve_forked};
pub(crate) use tree::started_at;
pub use wire::ExitStatus;
