//! The core's log records on their way to a language's own logging.
//!
//! - JOB-11 (no-upcalls): no thread of the core calls into a language's runtime to log, or waits for it. Records wait
//!   here for the calls that the runtime makes anyway.
//! - JOB-12 (bounded): when there are more than [`QUEUE_RECORDS`] records, the rest is dropped.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_nobody_empties_takes_what_it_can_and_holds_up_no_thread() {
        collect_logs();
        let more = QUEUE_RECORDS + 100;
        let writer = std::thread::spawn(move || (0..more).for_each(|i| log::debug!("record {i}")));
        writer.join().unwrap();
        let texts: Vec<String> = take_logs().into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts.len(), QUEUE_RECORDS, "JOB-11, JOB-12");
    }
}
