//! Threads that read what a rank writes: its output, here, into its [`RankLog`].
//!
//! A pipe ends when its last writer closes it. Some writers stay: a process that the kernel can't end, or a fork of
//! this process. So a reader can be told to take what is there and stop.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use phalanx_types::{Error, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use rustix::pipe::fcntl_setpipe_size;

use crate::disk_queue::DiskQueue;
use crate::rank_log::RankLog;

/// The most that an unprivileged process may ask for, by default. A burst of output then waits in the pipe, not in the
/// rank.
const PIPE_BYTES: usize = 1 << 20;

/// One read.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// What a reader that is told to finish takes at most: more than a pipe holds means that somebody still writes.
pub(crate) const LAST_BYTES: usize = 4 * PIPE_BYTES;

/// Small writes in quick succession are left to gather in the pipe for this long: to be woken for each of a million
/// lines costs more, here and in the rank, than to move them.
pub(crate) const GATHER: Duration = Duration::from_millis(2);

/// What counts as small.
pub(crate) const SMALL_BYTES: usize = 16 << 10;

/// A thread that reads a pipe to its end. Dropping it is [`PipeReader::finish`].
#[derive(Debug)]
pub struct PipeReader {
    process: u32,
    finish: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl PipeReader {
    /// Starts a thread that does `read`: until the end, or until what it is given is readable and nothing is left.
    pub(crate) fn start(name: &str, read: impl FnOnce(&OwnedFd) + Send + 'static) -> Result<PipeReader> {
        let doing = || format!("start the thread {name}");
        let finish = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Error::io(doing(), &e.into()))?);
        let told = Arc::clone(&finish);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || read(&told))
            .map_err(|error| Error::io(doing(), &error))?;
        Ok(PipeReader { process: std::process::id(), finish, thread: Some(thread) })
    }

    /// Whether the pipe was read to its end.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until every writer has closed the pipe and all of it was read.
    pub fn join(mut self) {
        self.wait();
    }

    /// Takes what is in the pipe, and ends, whoever still has it open.
    pub fn finish(self) {
        drop(self);
    }

    fn wait(&mut self) {
        if let Some(thread) = self.thread.take() {
            // A panic of the callback was shown where it happened; there is nothing to add.
            let _ = thread.join();
        }
    }
}

impl Drop for PipeReader {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // In a fork of the process that started it: the thread is not here, and its eventfd is not ours.
            std::mem::forget(self.thread.take());
            return;
        }
        if self.thread.is_some() {
            let _ = write(&*self.finish, &1_u64.to_ne_bytes());
            self.wait();
        }
    }
}

fn read_to_end(pipe: &OwnedFd, finish: &OwnedFd, mut take: impl FnMut(&[u8])) {
    let mut buffer = vec![0; READ_BYTES];
    let mut left_to_take = None;
    let mut last_read = Instant::now();
    loop {
        let mut fds = [PollFd::new(pipe, PollFlags::IN), PollFd::new(finish, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let ready = match poll(&mut fds, left_to_take.map(|_: usize| &now)) {
            Ok(ready) => ready,
            Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        if left_to_take.is_none() && !fds[1].revents().is_empty() {
            left_to_take = Some(LAST_BYTES);
            continue;
        }
        if ready == 0 || fds[0].revents().is_empty() {
            return;
        }
        // The only reader of a pipe that is ready doesn't wait here.
        match read(pipe, &mut buffer) {
            Ok(0) => return,
            Ok(n) => {
                take(&buffer[..n]);
                if n < SMALL_BYTES && last_read.elapsed() < 2 * GATHER && left_to_take.is_none() {
                    gather(finish);
                }
                last_read = Instant::now();
                left_to_take = match left_to_take {
                    Some(left) if left <= n => return,
                    left => left.map(|left| left - n),
                };
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => return,
        }
    }
}

/// Waits for [`GATHER`], or until told to finish.
pub(crate) fn gather(finish: &OwnedFd) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: GATHER.subsec_nanos().into() };
    // An interrupted wait is a shorter one.
    let _ = poll(&mut [PollFd::new(finish, PollFlags::IN)], Some(&timeout));
}

/// Reads a rank's output into its log until all writers are gone, then marks the log finished. `wake` is called after
/// each change, the last one included, from the thread that writes to the disk; it must not block, or the rank will
/// (GUARD-11).
///
/// # Errors
/// [`phalanx_types::ErrorKind::Io`] if there is no thread or descriptor to be had.
pub fn pump(output: OwnedFd, log: Arc<RankLog>, wake: Box<dyn Fn() + Send>) -> Result<PipeReader> {
    // Users have a limit for all their pipes; then it stays as it is.
    let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
    let disk = DiskQueue::start(log, wake)?;
    PipeReader::start("phalanx-output", move |finish| {
        read_to_end(&output, finish, |bytes| disk.push(bytes));
        drop(output);
        disk.finish();
    })
}
