//! The one policy by which errors and panics of the core become Python exceptions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx_types::{Error, panic_text};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(phalanx._native, NativeError, PyRuntimeError, "An error of the Rust core.");

fn raise(py: Python<'_>, kind: &str, message: String) -> PyErr {
    let error = NativeError::new_err(message);
    match error.value(py).setattr("kind", kind) {
        Ok(()) => error,
        Err(e) => e,
    }
}

/// The error of a call that took no time, and so kept the interpreter lock, as `NativeError`.
pub(crate) fn checked<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| raise(py, error.kind().name(), error.to_string()))
}

/// Runs `call` without the interpreter lock; its errors and panics become `NativeError`.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(call))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(raise(py, error.kind().name(), error.to_string())),
        Err(panic) => Err(raise(py, "panic", panic_text(panic.as_ref()))),
    }
}
