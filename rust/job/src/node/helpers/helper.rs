//! Threads that do what may take time, so that the node's own thread waits for nothing.

use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use phalanx_io::pause;
use phalanx_types::{Deadline, Error, Result};

/// How long the end of a node waits for a thread that a disk holds.
const PATIENCE: Duration = Duration::from_secs(1);

/// A thread that does one thing after the other.
///
/// Dropping it has what waits done, and waits for that for a moment. A thread that a disk keeps from ending is left
/// behind then, and the log says so.
pub(crate) struct Helper<T> {
    name: &'static str,
    orders: Option<Sender<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Helper<T> {
    /// Starts a thread of that name, which does `work`.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn start(name: &'static str, work: impl FnMut(T) + Send + 'static) -> Result<Helper<T>> {
        let (orders, ordered): (_, Receiver<T>) = crossbeam_channel::unbounded();
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || ordered.into_iter().for_each(work))
            .map_err(|e| Error::io(format!("start the thread {name}"), &e))?;
        Ok(Helper { name, orders: Some(orders), thread: Some(thread) })
    }

    /// Has it do something, after all that it was given before.
    pub(crate) fn give(&self, order: T) {
        // A thread that has failed has said so, and takes nothing more.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    /// For who gives it orders, too. As long as there is one, it has no end.
    pub(crate) fn orders(&self) -> Option<Sender<T>> {
        self.orders.clone()
    }

    /// How much waits to be done.
    pub(crate) fn waiting(&self) -> usize {
        self.orders.as_ref().map_or(0, Sender::len)
    }
}

impl<T> Drop for Helper<T> {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            join_or_leave(thread, self.name);
        }
    }
}

/// Waits for a thread that is about to end, but not for a disk that keeps it from that.
pub(crate) fn join_or_leave(thread: JoinHandle<()>, name: &str) {
    let deadline = Deadline::after(PATIENCE);
    while !thread.is_finished() && !deadline.passed() {
        pause(Duration::from_millis(1), deadline);
    }
    if !thread.is_finished() {
        log::warn!("the disk doesn't answer; the thread {name} is left to it");
    } else if thread.join().is_err() {
        log::error!("the thread {name} panicked");
    }
}
