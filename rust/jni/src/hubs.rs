//! The hubs of this JVM, by handle: a number that is never used again.
//!
//! BINDING-1 (logs-outlast-hubs): the output that a hub has received can be read after the hub is closed, until the JVM
//! drops it. Nobody copies it meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_job::{Hub, LogTails};
use phalanx_types::{Error, ErrorKind, Result};

static NEXT: AtomicI64 = AtomicI64::new(1);
static OPEN: Mutex<BTreeMap<i64, Arc<Hub>>> = Mutex::new(BTreeMap::new());
static LOGS: Mutex<BTreeMap<i64, Arc<LogTails>>> = Mutex::new(BTreeMap::new());

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn add(hub: Hub) -> i64 {
    let handle = NEXT.fetch_add(1, Ordering::Relaxed);
    lock(&LOGS).insert(handle, Arc::clone(hub.logs()));
    lock(&OPEN).insert(handle, Arc::new(hub));
    handle
}

pub(crate) fn get(handle: i64) -> Result<Arc<Hub>> {
    let hub = lock(&OPEN).get(&handle).cloned();
    hub.ok_or_else(|| Error::new(ErrorKind::Closed, "the hub is closed"))
}

/// The output that a hub has received, be it closed or not.
pub(crate) fn logs(handle: i64) -> Result<Arc<LogTails>> {
    let logs = lock(&LOGS).get(&handle).cloned();
    logs.ok_or_else(|| Error::new(ErrorKind::Closed, "the hub's logs are dropped"))
}

/// Gives the memory of a hub's output back; again is harmless.
pub(crate) fn drop_logs(handle: i64) {
    lock(&LOGS).remove(&handle);
}

/// Closes a hub, but for its output; again is harmless. The last of the calls that still hold it frees it.
pub(crate) fn close(handle: i64) {
    // Outside the lock: dropping joins the hub's thread.
    let hub = lock(&OPEN).remove(&handle);
    drop(hub);
}
