//! The core's log records on their way to Python's `logging`, under the logger `phalanx`.
//!
//! Threads of the core never take the interpreter lock: records wait in a short queue, which the calls that Python
//! makes hand over. Beyond its length records are dropped, not threads held up.

use std::sync::OnceLock;

use crossbeam_channel::{Receiver, Sender};
use log::{LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;
use pyo3::types::PyDict;

const QUEUE_RECORDS: usize = 1024;

struct Queue {
    sender: Sender<(u8, String)>,
    receiver: Receiver<(u8, String)>,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

impl Log for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("phalanx")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            // Python's levels: DEBUG 10, INFO 20, WARNING 30, ERROR 40.
            let level = 50 - 10 * record.level() as u8;
            let _ = self.sender.try_send((level.max(10), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Starts collecting; called before the core is used, not at import.
pub(crate) fn collect() {
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = crossbeam_channel::bounded(QUEUE_RECORDS);
        Queue { sender, receiver }
    });
    // Fails when it is set already, which is what is wanted.
    if log::set_logger(queue).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

/// Hands what has been collected to Python.
pub(crate) fn hand_over(py: Python<'_>) -> PyResult<()> {
    let Some(queue) = QUEUE.get() else { return Ok(()) };
    if queue.receiver.is_empty() {
        return Ok(());
    }
    let kwargs = PyDict::new(py);
    kwargs.set_item("stacklevel", 1)?;
    let logger = py.import("logging")?.call_method1("getLogger", ("phalanx",))?;
    for (level, text) in queue.receiver.try_iter().take(QUEUE_RECORDS) {
        logger.call_method("log", (level, "%s", text), Some(&kwargs))?;
    }
    Ok(())
}
