//! Which attempt is the present one, and which generation its ranks are, for the threads of the hub's owner.
//!
//! DRIVER-8 (before-news): who has heard of a restart finds the attempt that it begins.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_types::{Attempt, Generation};

/// The present attempt. All copies are one.
#[derive(Debug, Clone)]
pub(super) struct Present(Arc<Mutex<(Attempt, Generation)>>);

impl Present {
    /// A job that begins.
    pub(super) fn first() -> Present {
        Present(Arc::new(Mutex::new((Attempt::first(), Generation::first()))))
    }

    /// From now on it is this one.
    pub(super) fn begin(&self, attempt: Attempt, generation: Generation) {
        *self.lock() = (attempt, generation);
    }

    pub(super) fn attempt(&self) -> Attempt {
        self.lock().0
    }

    pub(super) fn generation(&self) -> Generation {
        self.lock().1
    }

    fn lock(&self) -> MutexGuard<'_, (Attempt, Generation)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
