//! What belongs to the process that made it: a forked child neither uses nor drops it (BINDING-5).

use phalanx_types::{Error, ErrorKind, Result};

pub(crate) struct OwnProcess<T> {
    process: u32,
    /// Until it is dropped.
    value: Option<T>,
}

impl<T> OwnProcess<T> {
    pub(crate) fn new(value: T) -> OwnProcess<T> {
        OwnProcess { process: std::process::id(), value: Some(value) }
    }

    fn is_own(&self) -> bool {
        std::process::id() == self.process
    }

    /// The value, in the process that made it. In another one, locks may be held by threads that it doesn't have.
    pub(crate) fn get(&self) -> Result<&T> {
        self.value.as_ref().filter(|_| self.is_own()).ok_or_else(|| {
            let text = format!(
                "this process group belongs to process {}, from which this one was forked: only that one can use it",
                self.process
            );
            Error::new(ErrorKind::Closed, text)
        })
    }
}

impl<T> Drop for OwnProcess<T> {
    fn drop(&mut self) {
        if !self.is_own() {
            // It would take leave of the others, and wait for threads that this process doesn't have.
            std::mem::forget(self.value.take());
        }
    }
}
