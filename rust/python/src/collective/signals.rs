//! Signals that Python is to handle while a synchronous collective waits.
//!
//! - BINDING-9 (interruptible): an interrupt, such as that of Ctrl-C, ends a collective that waits on the main thread.
//!   What its handler raised reaches the caller. The group is broken then, and the other ranks are told.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use phalanx_types::{Error, ErrorKind, Result};
use pyo3::prelude::*;

use super::work::BETWEEN_SIGNALS;

thread_local! {
    /// When this thread looked last; None on threads that have no signals to handle.
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Asked by the group while it waits.
pub(crate) fn check() -> Result<()> {
    match LOOKED.get() {
        Some(looked) if looked.elapsed() >= BETWEEN_SIGNALS => LOOKED.set(Some(Instant::now())),
        _ => return Ok(()),
    }
    Python::attach(|py| py.check_signals()).map_err(|raised| {
        let text = format!("interrupted: {raised}");
        RAISED.set(Some(raised));
        Error::new(ErrorKind::Cancelled, text)
    })
}

/// Runs `call`, and raises what a handler raised meanwhile.
pub(crate) fn watched<T>(call: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    LOOKED.set(Some(Instant::now()));
    let result = call();
    LOOKED.set(None);
    match RAISED.take() {
        Some(raised) => Err(raised),
        None => result,
    }
}
