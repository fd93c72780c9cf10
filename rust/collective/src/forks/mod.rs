//! What forked children don't have: the descriptors of this process's groups. A child that kept them open would hide
//! that its parent has ended.
//!
//! A program forks at any time, also while a group comes together, opens connections, or goes. So whoever opens or
//! closes a descriptor of a group does it inside of a gate (`gate`), and forks go through the same one. A host
//! of this crate whose programs may fork calls [`before`], and then one of the other two, around each fork.
//!
//! - GROUP-29 (all-known): while a process forks, [`descriptors`] names all that its groups have open, and nothing
//!   else.
//! - GROUP-30 (closed-once): what a child has closed is not closed again there. Its number may be another file's by
//!   then.
//! - GROUP-31 (no-waiting): nobody waits for anything inside of the gate. So a fork waits for some system calls at
//!   most, whatever locks its thread holds, and who opens waits for forks alone.
//! - GROUP-32 (nested): a thread that is inside of the gate doesn't wait there again. A signal's handler may fork.

mod gate;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::forks::gate::{Gate, Side};

static GATE: Gate = Gate::new(AtomicU64::new(0), AtomicU32::new(0));
/// Locked only inside of the gate, for a moment: so it is free while the process forks.
static OPEN: Mutex<Open> = Mutex::new(Open { next: 0, descriptors: BTreeMap::new() });

thread_local! {
    /// How often this thread is inside.
    static INSIDE: Cell<u32> = const { Cell::new(0) };
}

struct Open {
    /// Never used again, nor in a child.
    next: u64,
    descriptors: BTreeMap<u64, RawFd>,
}

fn open() -> MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn enter(side: Side) {
    INSIDE.with(|inside| {
        inside.set(inside.get() + 1);
        if inside.get() == 1 {
            GATE.enter(side);
        }
    });
}

fn leave(side: Side) {
    INSIDE.with(|inside| match inside.get() {
        // It hasn't entered: the child of a fork within a fork.
        0 => {}
        1 => {
            GATE.leave(side);
            inside.set(0);
        }
        more => inside.set(more - 1),
    });
}

/// To be called before this process forks, on the thread that does. From now on groups open and close nothing.
///
/// ```
/// use phalanx_collective::forks;
///
/// forks::before();
/// // The fork. Its child closes `forks::after_in_child()`.
/// forks::after_in_parent();
/// ```
pub fn before() {
    enter(Side::Forking);
}

/// To be called after a fork, or after one that failed, in the process that forked.
pub fn after_in_parent() {
    leave(Side::Forking);
}

/// To be called after a fork in the child: what it is to close. From now on it can have groups of its own. It must not
/// use its parent's.
pub fn after_in_child() -> Vec<RawFd> {
    INSIDE.set(0);
    GATE.reset();
    // It is free but in a fork within an opening (GROUP-32), and there is nothing that a child could wait for.
    let descriptors = OPEN.try_lock().map(|mut open| std::mem::take(&mut open.descriptors));
    descriptors.unwrap_or_default().into_values().collect()
}

/// Those of all groups of this process. Of use only between [`before`] and [`after_in_parent`].
pub fn descriptors() -> Vec<RawFd> {
    open().descriptors.values().copied().collect()
}

/// As long as this lives, this process doesn't fork. Nothing is to be waited for meanwhile (GROUP-31).
pub(crate) struct Opening(PhantomData<*const ()>);

impl Opening {
    pub(crate) fn begin() -> Opening {
        enter(Side::Opening);
        Opening(PhantomData)
    }

    /// A descriptor that was opened, or came, in this opening.
    pub(crate) fn private<T: AsRawFd>(&self, descriptor: T) -> Private<T> {
        let mut open = open();
        let number = open.next;
        open.next += 1;
        open.descriptors.insert(number, descriptor.as_raw_fd());
        Private { number, descriptor: Some(descriptor) }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        leave(Side::Opening);
    }
}

/// A descriptor that forked children don't have.
pub(crate) struct Private<T> {
    number: u64,
    /// Until it is dropped.
    descriptor: Option<T>,
}

impl<T> Private<T> {
    /// The same descriptor as another type.
    pub(crate) fn map<U>(mut self, convert: impl FnOnce(T) -> U) -> Private<U> {
        let (number, descriptor) = (self.number, self.descriptor.take());
        Private { number, descriptor: descriptor.map(convert) }
    }
}

impl<T> Deref for Private<T> {
    type Target = T;

    fn deref(&self) -> &T {
        match &self.descriptor {
            Some(descriptor) => descriptor,
            None => unreachable!("only what is dropped has none"),
        }
    }
}

impl<T> DerefMut for Private<T> {
    fn deref_mut(&mut self) -> &mut T {
        match &mut self.descriptor {
            Some(descriptor) => descriptor,
            None => unreachable!("only what is dropped has none"),
        }
    }
}

impl<T: AsFd> AsFd for Private<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        (**self).as_fd()
    }
}

impl<T: fmt::Debug> fmt::Debug for Private<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.descriptor.fmt(f)
    }
}

impl<T> Drop for Private<T> {
    fn drop(&mut self) {
        let Some(descriptor) = self.descriptor.take() else { return };
        let _closing = Opening::begin();
        match open().descriptors.remove(&self.number) {
            Some(_) => drop(descriptor),
            // GROUP-30
            None => std::mem::forget(descriptor),
        }
    }
}
