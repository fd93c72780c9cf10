//! Freezing a rank between two of its steps: a rank that asks for a step and a node that freezes it are never both let
//! on.
//!
//! Each stores its own word and then loads the other's. A processor may let a load go before an earlier store, so there
//! is a fence between the two at both ends. Without it, at one end or both, each could see the other's word as it was
//! before. Python can't make one, so a rank asks here.
//!
//! - GUARD-3 (no-step-unknown): a step that the rank was let to begin is known to whoever froze it: `freeze` told it,
//!   or a later one. Any other step is begun only after a `thaw`.
//! - GUARD-4 (never-waits): neither waits for the other. What a rank does that may not begin is its own affair.
//! - GUARD-22 (told-or-late): of a rank that begins a step though it is frozen, and a node that tells it something: the
//!   rank finds what it is told, or the node knows of the step.
//!
//! `tests/freeze_model.rs` runs this file under loom, with the fences and without.

use super::sync::{AtomicU64, Ordering, fence};

/// As the rank: asks for a step. Whether it may begin it.
pub(crate) fn ask(asked: &AtomicU64, frozen: &AtomicU64, step: u64) -> bool {
    asked.store(step, Ordering::Release);
    fence(Ordering::SeqCst);
    frozen.load(Ordering::Acquire) == 0
}

/// As the node: from now on the rank begins no step. The last that it asked for, which it may have begun.
pub(crate) fn freeze(asked: &AtomicU64, frozen: &AtomicU64) -> u64 {
    frozen.store(1, Ordering::Release);
    fence(Ordering::SeqCst);
    asked.load(Ordering::Acquire)
}

/// As the rank: begins this step though it is frozen. What it is told by now.
pub(crate) fn go_on(late: &AtomicU64, told: &AtomicU64, step: u64) -> u64 {
    late.store(step, Ordering::Release);
    fence(Ordering::SeqCst);
    told.load(Ordering::Acquire)
}

/// As the node: tells the rank so much. The last step that it has begun though it was frozen.
pub(crate) fn tell(told: &AtomicU64, late: &AtomicU64, so_much: u64) -> u64 {
    told.store(so_much, Ordering::Release);
    fence(Ordering::SeqCst);
    late.load(Ordering::Acquire)
}

/// As the node: the rank may ask again.
pub(crate) fn thaw(frozen: &AtomicU64) {
    frozen.store(0, Ordering::Release);
}
