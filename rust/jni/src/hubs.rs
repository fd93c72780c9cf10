//! The hubs that are open in this JVM, by handle: a number that is never used again.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_job::Hub;
use phalanx_types::{Error, ErrorKind, Result};

static NEXT: AtomicI64 = AtomicI64::new(1);
static OPEN: Mutex<BTreeMap<i64, Arc<Hub>>> = Mutex::new(BTreeMap::new());

fn open_hubs() -> MutexGuard<'static, BTreeMap<i64, Arc<Hub>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn add(hub: Hub) -> i64 {
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    open_hubs().insert(handle, Arc::new(hub));
    handle
}

pub(crate) fn get(handle: i64) -> Result<Arc<Hub>> {
    let hub = open_hubs().get(&handle).cloned();
    hub.ok_or_else(|| Error::new(ErrorKind::Closed, "the hub is closed"))
}

/// Closes a hub; again is harmless. The last of the calls that still hold it frees it.
pub(crate) fn close(handle: i64) {
    // Outside the lock: dropping joins the hub's thread.
    let hub = open_hubs().remove(&handle);
    drop(hub);
}
