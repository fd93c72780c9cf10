//! The ranks' output in the log of the executor that their node runs in, which the platform collects.
//!
//! Owns one thread.
//!
//! - NODE-23 (slows-nobody): a log that takes nothing slows no rank: the ranks' log files are the buffer. Nor is it
//!   waited for longer than [`PATIENCE`].
//! - NODE-24 (bounded): of each rank the first [`MOST_BYTES`] are copied, and of one that failed its last
//!   [`RESUME_BYTES`]; a line says in which file the rest is.

use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, select};
use phalanx_supervisor::RankLog;
use phalanx_types::{Error, ExecutorLog, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::console::Console;
use crate::node::output::followed_log::{FollowedLog, Next, RESUME_BYTES};

/// How much of a rank is copied while it runs.
const MOST_BYTES: u64 = 64 << 20;
/// How long a node waits for the log to take the rest.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// News is left to gather for this long, as for the live view.
const GATHER: Duration = Duration::from_millis(20);
/// A pipe that is ready takes so much at once without waiting (PIPE_BUF), and whole.
const PIECE_BYTES: usize = 4096;
/// How often a write that waits looks whether it is still wanted.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What goes from the logs of one attempt to the executor's.
pub(crate) struct ExecutorLogCopy {
    news: Sender<()>,
    finish: Sender<Vec<(u32, String)>>,
    ended: Receiver<()>,
    abandoned: Arc<AtomicBool>,
}

impl ExecutorLogCopy {
    /// Copies `what` of these logs (rank and log), as they grow from now on, to `to`. `at_end` is called when it has
    /// ended.
    pub(crate) fn start(
        what: ExecutorLog,
        to: OwnedFd,
        job: &str,
        logs: &[(u32, Arc<RankLog>)],
        max_lag_bytes: u64,
        at_end: impl FnOnce() + Send + 'static,
    ) -> Result<ExecutorLogCopy> {
        let (news, has_news) = crossbeam_channel::bounded(1);
        let (finish, finishing) = crossbeam_channel::bounded(1);
        let (ends, ended) = crossbeam_channel::bounded(0);
        let abandoned = Arc::new(AtomicBool::new(false));
        let from_end = |(rank, log): &(u32, Arc<RankLog>)| FollowedLog {
            position: log.end(),
            ..FollowedLog::new(*rank, Arc::clone(log))
        };
        let worker = Worker {
            to: File::from(to),
            job: job.to_string(),
            logs: logs.iter().map(from_end).collect(),
            most: if what == ExecutorLog::All { MOST_BYTES } else { 0 },
            max_lag_bytes,
            console: Console::to_file(),
            text: String::new(),
            told_loss: None,
            abandoned: Arc::clone(&abandoned),
        };
        std::thread::Builder::new()
            .name("phalanx-executor-log".into())
            .spawn(move || {
                worker.run(&has_news, &finishing);
                drop(ends);
                at_end();
            })
            .map_err(|e| Error::io("start the copy of output to the executor's log", &e))?;
        Ok(ExecutorLogCopy { news, finish, ended, abandoned })
    }

    /// What the pumps call when a rank wrote something.
    pub(crate) fn waker(&self) -> Box<dyn Fn() + Send> {
        let news = self.news.clone();
        Box::new(move || {
            // One word of news is as good as two.
            let _ = news.try_send(());
        })
    }

    /// No rank writes any more, and these failed, for the reasons given: it ends when the rest is copied.
    pub(crate) fn finish(&self, failed: Vec<(u32, String)>) {
        // The thread may have ended already: the log took nothing.
        let _ = self.finish.send(failed);
    }
}

impl Drop for ExecutorLogCopy {
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Relaxed);
        // A disk that hangs may keep the thread in a write for ever; everything else lets it go at once.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}

/// Why no more is copied.
enum Stop {
    Abandoned,
    Failed(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::Failed(error.to_string())
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error.to_string())
    }
}

struct Worker {
    to: File,
    job: String,
    logs: Vec<FollowedLog>,
    /// The offset up to which each log is copied while it grows.
    most: u64,
    max_lag_bytes: u64,
    console: Console,
    /// What is to be written next.
    text: String,
    /// When it was last told that a disk takes nothing.
    told_loss: Option<Instant>,
    abandoned: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self, news: &Receiver<()>, finishing: &Receiver<Vec<(u32, String)>>) {
        if let Err(Stop::Failed(why)) = self.copy_all(news, finishing) {
            log::warn!("job {}: the executor's log gets no more of the ranks' output: {why}", self.job);
        }
    }

    fn copy_all(
        &mut self,
        news: &Receiver<()>,
        finishing: &Receiver<Vec<(u32, String)>>,
    ) -> std::result::Result<(), Stop> {
        loop {
            select! {
                // More comes together, but the end of a run doesn't wait for that.
                recv(news) -> _ => match finishing.recv_timeout(GATHER) {
                    Ok(failed) => return self.finish(&failed),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return Err(Stop::Abandoned),
                },
                recv(finishing) -> failed => return self.finish(&failed.map_err(|_| Stop::Abandoned)?),
            }
            for i in 0..self.logs.len() {
                self.copy(i, self.most, false)?;
            }
        }
    }

    fn finish(&mut self, failed: &[(u32, String)]) -> std::result::Result<(), Stop> {
        for i in 0..self.logs.len() {
            self.copy(i, self.most, true)?;
            let followed = &mut self.logs[i];
            let (rank, end, file) =
                (followed.rank, followed.log.end(), followed.log.path().display().to_string());
            let how = failed.iter().find(|(of, _)| *of == rank).map(|(_, how)| how);
            let more = end.saturating_sub(followed.position);
            if how.is_some() && more > 0 {
                followed.position = followed.position.max(end.saturating_sub(RESUME_BYTES));
                self.copy(i, u64::MAX, true)?;
            }
            let notice = match how {
                Some(how) => format!("[phalanx] of job {}: {how}; its whole output is in {file}", self.job),
                None if more > 0 && self.most > 0 => {
                    format!("[phalanx] {more} more bytes of output are in {file}")
                }
                None => continue,
            };
            self.console.notice(rank, &notice, &mut self.text);
        }
        for i in 0..self.logs.len() {
            self.console.finish(self.logs[i].rank, &mut self.text);
        }
        self.write()
    }

    /// Copies what there is of a log before the offset `until`.
    fn copy(&mut self, i: usize, until: u64, finishing: bool) -> std::result::Result<(), Stop> {
        let mut chunk = vec![0; 64 << 10];
        while self.logs[i].position < until {
            let followed = &mut self.logs[i];
            let room =
                usize::try_from(until - followed.position).map_or(chunk.len(), |room| room.min(chunk.len()));
            let lag = if finishing { u64::MAX } else { self.max_lag_bytes };
            match followed.next(Instant::now(), lag, finishing, &mut self.told_loss, &mut chunk[..room])? {
                Next::Nothing => break,
                Next::Bytes { length, .. } => {
                    self.console.take(followed.rank, &chunk[..length], &mut self.text)
                }
                Next::Skip { notice, .. } => self.console.notice(followed.rank, &notice, &mut self.text),
            }
            self.write()?;
        }
        Ok(())
    }

    /// Writes what there is to write, when the log takes it.
    fn write(&mut self) -> std::result::Result<(), Stop> {
        let text = std::mem::take(&mut self.text);
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            if self.abandoned.load(Ordering::Relaxed) {
                return Err(Stop::Abandoned);
            }
            let mut ready = [PollFd::new(&self.to, PollFlags::OUT)];
            match poll(&mut ready, Some(&LOOK_EVERY)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                Ok(_) => {}
                Err(e) => return Err(std::io::Error::from(e).into()),
            }
            // Whole lines, so that what others write there doesn't stand within one.
            let most = &rest[..rest.len().min(PIECE_BYTES)];
            let piece = most.iter().rposition(|byte| *byte == b'\n').map_or(most, |at| &most[..=at]);
            match self.to.write(piece) {
                Ok(written) => rest = &rest[written..],
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read as _, pipe};

    use phalanx_io::pause;
    use phalanx_types::Deadline;

    use super::*;
    use crate::node::output::followed_log::tests::write_to;

    /// The log of rank 3, which wrote `text`.
    fn log_of(text: &[u8]) -> (tempfile::TempDir, Vec<(u32, Arc<RankLog>)>) {
        capped_log_of(text, 1 << 30)
    }

    fn capped_log_of(text: &[u8], max_bytes: u64) -> (tempfile::TempDir, Vec<(u32, Arc<RankLog>)>) {
        let dir = phalanx_testkit::temp_dir("executor-log");
        let log = RankLog::create(&dir.path().join("rank-3.log"), max_bytes).unwrap();
        write_to(&log, text);
        (dir, vec![(3, log)])
    }

    fn copy(what: ExecutorLog, logs: &[(u32, Arc<RankLog>)]) -> (ExecutorLogCopy, PipeReader) {
        let (reader, writer) = pipe().unwrap();
        (ExecutorLogCopy::start(what, writer.into(), "j", logs, 1 << 30, || {}).unwrap(), reader)
    }

    fn read(mut from: PipeReader) -> String {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn all_is_every_line_with_its_rank_from_the_attempts_beginning() {
        let (_dir, logs) = log_of(b"before\n");
        let (copy, reader) = copy(ExecutorLog::All, &logs);
        write_to(&logs[0].1, b"one\ntwo");
        (copy.waker())();
        copy.finish(Vec::new());
        assert_eq!(read(reader), "[rank 3] one\n[rank 3] two\n");
    }

    #[test]
    fn errors_are_the_last_output_of_ranks_that_failed_and_nothing_of_others() {
        let (_dir, logs) = log_of(b"");
        let (of_well, well) = copy(ExecutorLog::Errors, &logs);
        let (of_bad, bad) = copy(ExecutorLog::Errors, &logs);
        write_to(&logs[0].1, format!("{}\nlast\n", "x".repeat(1 << 20)).as_bytes());
        of_well.finish(vec![(4, "exited".into())]);
        assert_eq!(read(well), "");
        let reading = std::thread::spawn(|| read(bad));
        of_bad.finish(vec![(3, "exited with code 7".into())]);
        let text = reading.join().unwrap();
        assert!(text.len() < (64 << 10) + 1000, "NODE-24: {}", text.len());
        let last: Vec<&str> = text.lines().rev().take(2).collect();
        assert_eq!(last[1], "[rank 3] last");
        assert!(
            last[0].starts_with("[rank 3] [phalanx] of job j: exited with code 7; its whole output is in /"),
            "NODE-24: {text}"
        );
    }

    #[test]
    fn a_disk_that_takes_nothing_does_not_fill_the_executors_log() {
        let (dir, logs) = capped_log_of(b"", 4096);
        // The open segment takes its half of the cap; no other can be begun.
        dir.close().unwrap();
        let (copy, reader) = copy(ExecutorLog::All, &logs);
        for _ in 0..20 {
            write_to(&logs[0].1, &vec![b'x'; 64 << 10]);
            (copy.waker())();
            pause(2 * GATHER, Deadline::never());
        }
        copy.finish(Vec::new());
        let text = read(reader);
        let told = text.matches("could not be written").count();
        assert!((1..=2).contains(&told), "NODE-25: {told} times in less than 5 s, and at the end");
    }

    #[test]
    fn a_log_that_takes_nothing_is_left_and_has_whole_lines() {
        let (_dir, logs) = log_of(b"");
        let (copy, reader) = copy(ExecutorLog::All, &logs);
        write_to(&logs[0].1, "a line of output\n".repeat(20_000).as_bytes());
        (copy.waker())();
        let mut ready = [PollFd::new(&reader, PollFlags::IN)];
        assert_eq!(poll(&mut ready, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })), Ok(1));
        drop(copy);
        let text = read(reader);
        assert!(!text.is_empty() && text.len() <= 64 << 10, "NODE-23: {}", text.len());
        assert!(text.lines().all(|line| line == "[rank 3] a line of output"), "NODE-23: {text}");
    }
}
