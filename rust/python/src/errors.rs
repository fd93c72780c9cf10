//! The one policy by which errors and panics of the core become Python exceptions.
//!
//! `tests/contract/errors.json` says which class belongs to which kind (TYPES-3). Programs read the exception's `kind`.
//!
//! BINDING-18 (group-is-native): an error of a process group's operation is a `NativeError`, whatever its kind: torch
//! expects a `RuntimeError` from a backend.

use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx_types::{Error, ErrorClass, panic_text};
use pyo3::exceptions::{PyFileNotFoundError, PyIsADirectoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

pyo3::create_exception!(phalanx._native, NativeError, PyRuntimeError, "An error of the Rust core.");

fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let text = error.to_string();
    let exception = match error.kind().class() {
        ErrorClass::Value => PyValueError::new_err(text),
        ErrorClass::Type => PyTypeError::new_err(text),
        ErrorClass::MissingFile => PyFileNotFoundError::new_err(text),
        ErrorClass::Directory => PyIsADirectoryError::new_err(text),
        ErrorClass::State => PyRuntimeError::new_err(text),
        ErrorClass::Core => NativeError::new_err(text),
    };
    with_kind(py, exception, error.kind().name())
}

fn with_kind(py: Python<'_>, exception: PyErr, kind: &str) -> PyErr {
    match exception.value(py).setattr("kind", kind) {
        Ok(()) => exception,
        Err(e) => e,
    }
}

fn without_lock<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Error> + Send,
    raised: fn(Python<'_>, &Error) -> PyErr,
) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(call))) {
        Ok(result) => result.map_err(|error| raised(py, &error)),
        Err(panic) => Err(with_kind(py, NativeError::new_err(panic_text(panic.as_ref())), "panic")),
    }
}

/// The error of a call that took no time, and so kept the interpreter lock, as an exception.
pub(crate) fn checked<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
    result.map_err(|error| raised(py, &error))
}

/// Runs `call` without the interpreter lock; its errors and panics become exceptions.
pub(crate) fn detached<T: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<T> {
    without_lock(py, call, raised)
}

/// For the test of TYPES-3: fails by the kind of this name, or panics.
#[pyfunction]
pub(crate) fn fail_for_test(py: Python<'_>, kind: &str, message: String) -> PyResult<()> {
    detached(py, || Err(Error::for_test(kind, message)))
}

/// The same for the operations of a process group (BINDING-18).
pub(crate) mod group {
    use super::{Error, NativeError, PyErr, PyResult, Python, with_kind, without_lock};

    fn raised(py: Python<'_>, error: &Error) -> PyErr {
        with_kind(py, NativeError::new_err(error.to_string()), error.kind().name())
    }

    pub(crate) fn checked<T>(py: Python<'_>, result: Result<T, Error>) -> PyResult<T> {
        result.map_err(|error| raised(py, &error))
    }

    pub(crate) fn detached<T: Send>(
        py: Python<'_>,
        call: impl FnOnce() -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        without_lock(py, call, raised)
    }
}
