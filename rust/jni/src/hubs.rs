//! The hubs of this JVM.
//!
//! BINDING-1 (logs-outlast-hubs): the output that a hub has received can be read after the hub is closed, until the JVM
//! drops it. Nobody copies it meanwhile.

use std::sync::Arc;

use phalanx_job::{Hub, LogTails};
use phalanx_types::Result;

use crate::handles::{self, Handles};

static OPEN: Handles<Hub> = Handles::new("the hub is closed");
static LOGS: Handles<LogTails> = Handles::new("the hub's logs are dropped");

pub(crate) fn add(hub: Hub) -> i64 {
    let handle = handles::next();
    LOGS.add(handle, Arc::clone(hub.logs()));
    OPEN.add(handle, Arc::new(hub));
    handle
}

pub(crate) fn get(handle: i64) -> Result<Arc<Hub>> {
    OPEN.get(handle)
}

/// The output that a hub has received, be it closed or not.
pub(crate) fn logs(handle: i64) -> Result<Arc<LogTails>> {
    LOGS.get(handle)
}

/// Gives the memory of a hub's output back; again is harmless.
pub(crate) fn drop_logs(handle: i64) {
    LOGS.remove(handle);
}

/// Closes a hub, but for its output; again is harmless. The last of the calls that still hold it frees it.
pub(crate) fn close(handle: i64) {
    OPEN.remove(handle);
}
