//! Starts, watches and ends the ranks of one node: the [`guard`] between its client (the process that wants the ranks)
//! and the ranks, the ranks' output as files ([`rank_log`] and [`pipe_reader`]), what they and their node tell each
//! other while they run ([`rank_socket`], [`rank_words`], [`report_reader`]), warm pools from which guards are forked
//! ([`warm_pool`]), and the evidence of an out-of-memory kill ([`oom`]).
//!
//! The rules, quoted by the tests that prove them:
//!
//! - GUARD-5 (told-once): every launch ends in exactly one `NotStarted`, or in one `Started` and then one `Ended`,
//!   unless the guard is `Gone` before.
//! - GUARD-6 (nobody-left): once `Empty` was reported, no process of the tree is alive: not the ranks, not what they
//!   started, not what their children detached. It is reported within the grace and 2 s, unless the kernel can't end a
//!   process.
//! - GUARD-7 (descendants-only): only descendants of the guard are ever signalled.
//! - GUARD-8 (nobody-outlives): when the client dies, however it dies, its ranks end as if it had called `stop`.
//! - GUARD-9 (guard-death): when the guard dies, its ranks die with it, and the client gets `Gone`.
//! - GUARD-10 (clean-start): a rank starts with the environment it was given, descriptors 0 to 3, default signals, and
//!   a session of its own.
//! - GUARD-11 (output-never-blocks): nothing that happens to a rank's output blocks or ends the rank.
//! - GUARD-12 (output-unchanged): a log has the rank's bytes, unchanged, at their offset in the rank's output.
//! - GUARD-13 (quiet-client): nothing here forks the client without exec, installs a signal handler in it, or waits for
//!   another child of it than the guard, because the client may be a JVM.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod disk_queue;
mod freeze;
#[doc(hidden)]
pub mod fuzz;
pub mod guard;
mod notes;
mod notice_writer;
pub mod oom;
pub mod pipe_reader;
pub mod rank_log;
pub mod rank_socket;
pub mod rank_words;
pub mod report_reader;
mod segments;
#[allow(unsafe_code, reason = "the one place for system calls that no safe crate offers")]
mod sys;
mod tail;
pub mod warm_pool;

/// What freezing is made of; its model replaces it.
mod sync {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};
}

pub use guard::{
    ExitStatus, Guard, GuardEvent, GuardOptions, Launch, RankPipeEnds, RankPipes, python_program,
    serve_forked,
};
pub use notes::notes;
pub use oom::OomWatch;
pub use pipe_reader::{PipeReader, pump};
pub use rank_log::{Loss, RankLog, ReadAt};
pub use rank_socket::RankSocket;
pub use rank_words::RankWords;
pub use report_reader::{ReportReader, ReportRecord};
pub use sys::{peer_uid, stacks_signal, use_huge_pages};
