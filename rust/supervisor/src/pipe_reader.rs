//! Threads that read the pipes of a rank: its output into its [`RankLog`], its notes line by line.
//!
//! A pipe ends when its last writer closes it. Some writers stay: a process that the kernel can't end, or a fork of
//! this process. So a reader can be told to take what is there and stop.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use phalanx_types::contract::MAX_NOTE_BYTES;
use phalanx_types::{Error, RankNote, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use rustix::pipe::fcntl_setpipe_size;

use crate::disk_queue::DiskQueue;
use crate::rank_log::RankLog;

/// The most that an unprivileged process may ask for, by default. A burst of output then waits in the pipe, not in the
/// rank.
const PIPE_BYTES: usize = 1 << 20;

/// One read.
const READ_BYTES: usize = 64 << 10;

/// What a reader that is told to finish takes at most: more than a pipe holds means that somebody still writes.
const LAST_BYTES: usize = 4 * PIPE_BYTES;

/// Small writes in quick succession are left to gather in the pipe for this long: to be woken for each of a million
/// lines costs more, here and in the rank, than to move them.
const GATHER: Duration = Duration::from_millis(2);

/// What counts as small.
const SMALL_BYTES: usize = 16 << 10;

/// A thread that reads a pipe to its end. Dropping it is [`PipeReader::finish`].
#[derive(Debug)]
pub struct PipeReader {
    process: u32,
    finish: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl PipeReader {
    fn start(
        name: &str,
        pipe: OwnedFd,
        take: impl FnMut(&[u8]) + Send + 'static,
        at_end: impl FnOnce() + Send + 'static,
    ) -> Result<PipeReader> {
        let doing = || format!("start the thread {name}");
        let finish = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| Error::io(doing(), &e.into()))?);
        let told = Arc::clone(&finish);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                read_to_end(&pipe, &told, take);
                drop(pipe);
                at_end();
            })
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
fn gather(finish: &OwnedFd) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: GATHER.subsec_nanos().into() };
    // An interrupted wait is a shorter one.
    let _ = poll(&mut [PollFd::new(finish, PollFlags::IN)], Some(&timeout));
}

/// Reads a rank's output into its log until all writers are gone, then marks the log finished. `wake` is called after
/// each change, the last one included, from the thread that writes to the disk; it must not block, or the rank will
/// (SUP-7).
///
/// # Errors
/// [`phalanx_types::ErrorKind::Io`] if there is no thread or descriptor to be had.
pub fn pump(output: OwnedFd, log: Arc<RankLog>, wake: Box<dyn Fn() + Send>) -> Result<PipeReader> {
    // Users have a limit for all their pipes; then it stays as it is.
    let _ = fcntl_setpipe_size(&output, PIPE_BYTES);
    let disk = Arc::new(DiskQueue::start(log, wake)?);
    let rest = Arc::clone(&disk);
    PipeReader::start("phalanx-output", output, move |bytes| disk.push(bytes), move || rest.finish())
}

/// Reads a rank's notes, lines of at most [`MAX_NOTE_BYTES`]. Anything else is passed over: what writes there is the
/// rank, which may be any program.
///
/// # Errors
/// [`phalanx_types::ErrorKind::Io`] if there is no thread or descriptor to be had.
pub fn notes(notes: OwnedFd, mut on_note: Box<dyn FnMut(RankNote) + Send>) -> Result<PipeReader> {
    let mut lines = Lines::default();
    PipeReader::start(
        "phalanx-notes",
        notes,
        move |bytes| {
            lines.push(bytes, |line| {
                if let Some(note) = RankNote::parse(line) {
                    on_note(note);
                }
            });
        },
        || {},
    )
}

/// Cuts a stream into lines of at most [`MAX_NOTE_BYTES`].
#[derive(Debug, Default)]
struct Lines {
    line: Vec<u8>,
    too_long: bool,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(&[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, ends) = part.strip_suffix(b"\n").map_or((part, false), |text| (text, true));
            self.too_long |= self.line.len() + text.len() > MAX_NOTE_BYTES;
            if !self.too_long {
                self.line.extend_from_slice(text);
            }
            if ends {
                if !self.too_long {
                    on_line(&self.line);
                }
                self.line.clear();
                self.too_long = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn lines_that_are_too_long_are_skipped_and_the_next_one_is_read() {
        let longest = vec![b'x'; MAX_NOTE_BYTES];
        let mut stream = [&longest[..], b"\n", &longest[..], b"y\nok\nunfinished"].concat();
        for piece in [1, 7, stream.len()] {
            let mut lines = Lines::default();
            let mut got = Vec::new();
            for part in stream.chunks(piece) {
                lines.push(part, |line| got.push(line.to_vec()));
            }
            assert_eq!(got, [longest.clone(), b"ok".to_vec()]);
        }
        stream.clear();
    }

    #[test]
    fn garbage_among_the_notes_is_passed_over() {
        let (out, into) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (send, got) = crossbeam_channel::unbounded();
        let reader = notes(out, Box::new(move |note| send.send(note).unwrap())).unwrap();
        let lines = [
            r#"{"phase":"a"}"#,
            "null",
            r#"{"phase":"#,
            r#"{"later":1}"#,
            r#"{"cold":"b"}"#,
            r#"{"phase":"c"}"#,
        ];
        write(&into, &[b"\xff\xfe\n[1]\n", lines.join("\n").as_bytes()].concat()).unwrap();
        drop(into);
        reader.join();
        let expected = [RankNote::Phase("a".into()), RankNote::Cold("b".into())];
        assert_eq!(got.iter().collect::<Vec<_>>(), expected, "CONTRACT-2");
    }
}
