//! The core's log records on their way to a language's own logging.
//!
//! LOG-1: no thread of the core ever calls into a language's runtime to log, nor waits for it: records wait here for
//! the calls that the runtime makes anyway. LOG-2: beyond [`QUEUE_RECORDS`] records are dropped.

use std::sync::OnceLock;

use crossbeam_channel::{Receiver, Sender};
use log::{Level, LevelFilter, Log, Metadata, Record};

/// How many records may wait.
pub const QUEUE_RECORDS: usize = 1024;

struct Queue {
    sender: Sender<(Level, String)>,
    receiver: Receiver<(Level, String)>,
}

static QUEUE: OnceLock<Queue> = OnceLock::new();

impl Log for Queue {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("phalanx")
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let _ = self.sender.try_send((record.level(), record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// Starts collecting, once a process; called before the core is used, not at load.
pub fn collect_logs() {
    let queue = QUEUE.get_or_init(|| {
        let (sender, receiver) = crossbeam_channel::bounded(QUEUE_RECORDS);
        Queue { sender, receiver }
    });
    // Fails when it is set already, which is what is wanted.
    if log::set_logger(queue).is_ok() {
        log::set_max_level(LevelFilter::Debug);
    }
}

/// Takes what has been collected, oldest first; empty at once where there is nothing.
pub fn take_logs() -> Vec<(Level, String)> {
    QUEUE.get().map(|queue| queue.receiver.try_iter().take(QUEUE_RECORDS).collect()).unwrap_or_default()
}
