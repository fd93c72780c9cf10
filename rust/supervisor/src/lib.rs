//! Starts, watches and ends the ranks of one node: the [`guard`] between the host process and its ranks, the ranks'
//! output as files ([`rank_log`] and [`reader`]), and the evidence of an out-of-memory kill ([`oom`]).
//!
//! The rules, quoted by the tests that prove them:
//!
//! - SUP-1: every launch ends in exactly one `NotStarted`, or in one `Started` and then one `Ended`, unless the guard
//!   is `Gone` before.
//! - SUP-2: once `Empty` was reported, no process of the tree is alive: not the ranks, not what they started, not what
//!   their children detached. It is reported within the grace and 2 s, unless the kernel can't end a process.
//! - SUP-3: nothing but a descendant of the guard is ever signalled.
//! - SUP-4: when the host process dies, however it dies, its ranks end as if it had called `stop`.
//! - SUP-5: when the guard dies, its ranks die with it, and the host hears `Gone`.
//! - SUP-6: a rank starts with the environment it was given, descriptors 0 to 3, default signals, a session of its own.
//! - SUP-7: nothing that happens to a rank's output blocks or ends the rank.
//! - SUP-8: a log has the rank's bytes, unchanged, at their offset in the rank's output.
//! - SUP-9: the host process never forks without exec, installs no signal handler, and waits for no process but the
//!   guard: it may be a JVM.
#![deny(unsafe_code)]

pub mod guard;
pub mod oom;
pub mod pool;
pub mod rank_log;
pub mod reader;
mod segments;
#[allow(unsafe_code, reason = "the one place for system calls that no safe crate offers")]
mod sys;
mod tail;

pub use guard::{ExitHow, Guard, GuardEvent, GuardOptions, Launch, RankPipes, serve_forked};
pub use oom::OomWatch;
pub use rank_log::{Loss, RankLog, ReadAt};
pub use reader::{PipeReader, notes, pump};
pub use sys::{stacks_signal, use_huge_pages};
