//! What a forked child must not keep open of a group: connections are opened on the door's thread, at any time.
//!
//! - FORK-1 (all-known): between [`Descriptors::hold`] and [`Descriptors::release`] no descriptor comes or goes, and
//!   [`Descriptors::all`] names all of them. In a child that was forked then, that waits for no lock.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const FREE: u8 = 0;
const TAKEN: u8 = 1;

/// The descriptors of a group, for a process that forks. Cheap to clone.
///
/// ```
/// # use phalanx_collective::{Group, GroupOptions, HashStore};
/// # let group = Group::join(GroupOptions::new(0, 1, "example"), &mut HashStore::default()).unwrap();
/// let descriptors = group.descriptors();
/// descriptors.hold();
/// // ... fork: the child closes descriptors.all(), and forgets the group without dropping it.
/// descriptors.release();
/// ```
#[derive(Debug, Clone, Default)]
pub struct Descriptors(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    gate: AtomicU8,
    /// Locked only by who has the gate, or where nobody else can: so in a forked child it is free.
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// Until the group ends.
    kept: Vec<RawFd>,
    /// Of the door.
    passing: Vec<RawFd>,
}

impl Descriptors {
    /// From now on none is opened or closed, until [`Descriptors::release`]. Waits for what the door's thread is just
    /// doing, some milliseconds at most.
    pub fn hold(&self) {
        while self.0.gate.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            rustix::thread::sched_yield();
        }
    }

    /// Ends what [`Descriptors::hold`] began.
    pub fn release(&self) {
        self.0.gate.store(FREE, Ordering::Release);
    }

    /// All of them.
    pub fn all(&self) -> Vec<RawFd> {
        let open = self.open();
        open.kept.iter().chain(&open.passing).copied().collect()
    }

    /// Descriptors that stay open as long as the group lives.
    pub(crate) fn keep(&self, descriptors: impl IntoIterator<Item = RawFd>) {
        self.open().kept.extend(descriptors);
    }

    /// The group ends: they will be others' soon.
    pub(crate) fn clear(&self) {
        *self.open() = Open::default();
    }

    /// What else is open now, in place of what was.
    pub(crate) fn pass(&self, descriptors: impl IntoIterator<Item = RawFd>) {
        let passing = &mut self.open().passing;
        passing.clear();
        passing.extend(descriptors);
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
