//! The core's log records, handed to Python's `logging` under the logger `phalanx`.

use phalanx_job::take_logs;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Hands what has been collected to Python.
pub(crate) fn hand_over(py: Python<'_>) -> PyResult<()> {
    let records = take_logs();
    if records.is_empty() {
        return Ok(());
    }
    let kwargs = PyDict::new(py);
    kwargs.set_item("stacklevel", 1)?;
    let logger = py.import("logging")?.call_method1("getLogger", ("phalanx",))?;
    for (level, text) in records {
        // Python's levels: DEBUG 10, INFO 20, WARNING 30, ERROR 40.
        let number = (50 - 10 * level as u8).max(10);
        logger.call_method("log", (number, "%s", text), Some(&kwargs))?;
    }
    Ok(())
}
