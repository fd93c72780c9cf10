//! What this process knows of hosts that failed, over the runs of its applications (DRIVER-66). A host is bad for
//! whoever comes to it, so it doesn't matter whose run it was.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::driver::state::BadHosts;

static KNOWN: Mutex<BadHosts> = Mutex::new(BadHosts::none());

fn known_now() -> MutexGuard<'static, BadHosts> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known.
pub(super) fn known() -> BadHosts {
    known_now().clone()
}

/// The hosts in cooldown now: each one's name, how often it failed, in how many seconds its cooldown ends, and the last
/// failure in a sentence.
pub fn hosts_in_cooldown() -> Vec<(String, u32, f64, String)> {
    known_now().in_cooldown(Instant::now())
}

/// A run knows more.
pub(super) fn learn(hosts: BadHosts) {
    known_now().learn(hosts);
}
