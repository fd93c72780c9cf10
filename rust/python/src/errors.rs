//! The one policy by which errors and panics of the core become Python exceptions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx_types::{Error, ErrorKind};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

pyo3::create_exception!(phalanx._native, NativeError, PyRuntimeError, "An error of the Rust core.");

fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Timeout => "timeout",
        ErrorKind::Unreachable => "unreachable",
        ErrorKind::Refused => "refused",
        ErrorKind::Protocol => "protocol",
        ErrorKind::Io => "io",
        ErrorKind::Cancelled => "cancelled",
        ErrorKind::Closed => "closed",
    }
}

fn raise(py: Python<'_>, kind: &str, message: String) -> PyErr {
    let error = NativeError::new_err(message);
    match error.value(py).setattr("kind", kind) {
        Ok(()) => error,
        Err(e) => e,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("Phalanx itself failed: {}", text.unwrap_or("a panic without a message"))
}

/// The error of a call that took no time, and so kept the interpreter lock, as `NativeError`.
pub(crate) fn checked<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| raise(py, kind_name(error.kind()), error.to_string()))
}

/// Runs `call` without the interpreter lock; its errors and panics become `NativeError`.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(call))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(raise(py, kind_name(error.kind()), error.to_string())),
        Err(panic) => Err(raise(py, "panic", panic_text(panic.as_ref()))),
    }
}
