//! What this JVM holds, by handle: a number that is never used again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_types::{Error, ErrorKind, Result};

static NEXT: AtomicI64 = AtomicI64::new(1);

/// A new handle.
pub(crate) fn next() -> i64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Things of one kind by their handles.
pub(crate) struct Handles<T> {
    things: Mutex<BTreeMap<i64, Arc<T>>>,
    /// What is said of a handle that is no longer good.
    gone: &'static str,
}

impl<T> Handles<T> {
    pub(crate) const fn new(gone: &'static str) -> Handles<T> {
        Handles { things: Mutex::new(BTreeMap::new()), gone }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, Arc<T>>> {
        self.things.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, handle: i64, thing: Arc<T>) {
        self.lock().insert(handle, thing);
    }

    /// BINDING-3
    pub(crate) fn get(&self, handle: i64) -> Result<Arc<T>> {
        let thing = self.lock().get(&handle).cloned();
        thing.ok_or_else(|| Error::new(ErrorKind::Closed, self.gone))
    }

    /// Again is harmless. The last of the calls that still hold the thing frees it.
    pub(crate) fn remove(&self, handle: i64) {
        // Outside of the lock: dropping may wait.
        let thing = self.lock().remove(&handle);
        drop(thing);
    }
}
