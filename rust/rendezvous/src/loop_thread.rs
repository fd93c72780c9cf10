//! The thread of an event loop, with what ends it; and the listeners that one watches.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use mio::{Interest, Poll, Token, Waker};
use phalanx_io::{raise_descriptor_limit, widen_backlog};

/// A running event loop; it stops when dropped.
#[derive(Debug)]
pub(crate) struct LoopThread {
    /// What people call it.
    what: String,
    stopping: Arc<AtomicBool>,
    waker: Waker,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LoopThread {
    /// Starts a thread of this name that runs `run`, which returns soon after `waker` woke it with `stopping` set.
    pub(crate) fn start(
        name: &str,
        what: String,
        waker: Waker,
        stopping: Arc<AtomicBool>,
        run: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<LoopThread> {
        let called = what.clone();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            if let Err(error) = run() {
                log::error!("{called} ended: {error}");
            }
        })?;
        Ok(LoopThread { what, stopping, waker, thread: Mutex::new(Some(thread)) })
    }

    /// Returns when the thread has ended, whoever else has called it. Further calls do nothing.
    pub(crate) fn stop(&self) {
        // Held until the end, so that a second caller waits for it, too.
        let mut held = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = held.take() else { return };
        self.stopping.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            log::error!("can't stop {}: {error}", self.what);
            return;
        }
        if thread.join().is_err() {
            log::error!("{} ended in a panic", self.what);
        }
    }
}

impl Drop for LoopThread {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Has `poll` tell by `token` of who connects to `listener`, of whom there may be many.
pub(crate) fn watch_listener(
    poll: &Poll,
    listener: TcpListener,
    token: Token,
) -> io::Result<mio::net::TcpListener> {
    raise_descriptor_limit();
    listener.set_nonblocking(true)?;
    widen_backlog(&listener)?;
    let mut listener = mio::net::TcpListener::from_std(listener);
    poll.registry().register(&mut listener, token, Interest::READABLE)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use phalanx_types::Deadline;

    use super::*;

    #[test]
    fn each_of_two_that_stop_it_returns_when_it_has_ended() {
        let (poll, stopping) = (Poll::new().unwrap(), Arc::new(AtomicBool::new(false)));
        let waker = Waker::new(poll.registry(), Token(0)).unwrap();
        let (stops, has_ended) = (Arc::clone(&stopping), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&has_ended);
        let run = move || {
            // It ends slowly, as one does whose last connections are many.
            while !stops.load(Ordering::Acquire) {
                phalanx_io::pause(Duration::from_millis(1), Deadline::never());
            }
            phalanx_io::pause(Duration::from_millis(200), Deadline::never());
            ended.store(true, Ordering::Release);
            Ok(())
        };
        let thread = LoopThread::start("test", "the test".into(), waker, stopping, run).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    thread.stop();
                    assert!(has_ended.load(Ordering::Acquire), "STORE-4, ENTRANCE-4");
                });
            }
        });
    }
}
