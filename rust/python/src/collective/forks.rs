//! Forks of this process, whoever forks it: Python, multiprocessing, or a library.
//!
//! The C library calls the three functions below around each fork, on the thread that forks, which may hold the
//! interpreter lock. That is no hook of Python's: those of other modules run after Python's first and before the fork,
//! and other threads run between them. So nobody waits here for a thread that waits for the lock.

use std::io;

use phalanx_collective::forks;
use phalanx_types::{Error, Result};

/// BINDING-5: from now on, what children have of groups is closed in them.
pub(crate) fn close_in_children() -> Result<()> {
    // SAFETY: the three are functions for good, as this module is never unloaded. They don't unwind: they would abort.
    let code = unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    match code {
        0 => Ok(()),
        _ => Err(Error::io("hear of forks", &io::Error::from_raw_os_error(code))),
    }
}

extern "C" fn before() {
    forks::before();
}

extern "C" fn after_in_parent() {
    forks::after_in_parent();
}

extern "C" fn after_in_child() {
    for descriptor in forks::after_in_child() {
        // SAFETY: it is open, as the parent had it open when it forked (GROUP-29), and nobody else here closes it or
        // uses it (GROUP-30): threads that had it are none of this process, and `OwnProcess` gives nothing of a group
        // away.
        unsafe { rustix::io::close(descriptor) };
    }
}
