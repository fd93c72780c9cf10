//! Between a rank's output and the disk: a thread that writes, and what waits for it.
//!
//! - GUARD-1 (a-hung-disk-costs-output): a rank waits for a slow disk, which is how it is slowed down, but for one that
//!   doesn't answer only [`HUNG_AFTER`]. From then on its output is lost, and counted, until the disk answers
//!   (GUARD-11).
//! - GUARD-2 (bounded): [`MAX_WAITING_BYTES`] wait, and as many are being written.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_types::{Error, Result};

use crate::rank_log::RankLog;

/// A disk that has not taken what it was given for so long hangs.
const HUNG_AFTER: Duration = Duration::from_secs(5);
/// How much waits at most.
const MAX_WAITING_BYTES: usize = 4 << 20;

/// One rank's output on its way to the disk.
pub(crate) struct DiskQueue {
    shared: Arc<Shared>,
    hung_after: Duration,
}

struct Shared {
    log: Arc<RankLog>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Vec<u8>,
    /// How many bytes after these are lost.
    lost: u64,
    /// Since when the disk has been at work.
    busy_since: Option<Instant>,
    /// There will be no more.
    over: bool,
    /// All of it was taken.
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time: Option<Duration>) -> MutexGuard<'a, State> {
        match time {
            Some(time) => self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl DiskQueue {
    /// Begins a thread that writes into `log`, and calls `wake` whenever it has written, the last time included.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if there is no thread to be had.
    pub(crate) fn start(log: Arc<RankLog>, wake: Box<dyn Fn() + Send>) -> Result<DiskQueue> {
        DiskQueue::start_with(log, wake, HUNG_AFTER)
    }

    fn start_with(log: Arc<RankLog>, wake: Box<dyn Fn() + Send>, hung_after: Duration) -> Result<DiskQueue> {
        let shared = Arc::new(Shared { log, state: Mutex::default(), changed: Condvar::new() });
        let writes = Arc::clone(&shared);
        // Not waited for: in a hung system call it can't be ended. It ends once that returns.
        std::thread::Builder::new()
            .name("phalanx-disk".into())
            .spawn(move || write_all(&writes, &*wake, hung_after))
            .map_err(|e| Error::io("start the thread phalanx-disk", &e))?;
        Ok(DiskQueue { shared, hung_after })
    }

    /// Takes output. Waits for a disk that is slow.
    pub(crate) fn push(&self, bytes: &[u8]) {
        self.shared.log.note(bytes);
        let mut state = self.shared.lock();
        loop {
            if state.lost == 0 && state.waiting.len() + bytes.len() <= MAX_WAITING_BYTES {
                state.waiting.extend_from_slice(bytes);
                break;
            }
            let left = self.patience(&state);
            if left.is_zero() {
                if state.lost == 0 {
                    log::warn!("{}: {}", self.shared.log.path().display(), hung(self.hung_after));
                }
                state.lost += bytes.len() as u64;
                break;
            }
            state = self.shared.wait(state, Some(left));
        }
        self.shared.changed.notify_all();
    }

    /// How long the disk may take yet for what it does.
    fn patience(&self, state: &State) -> Duration {
        self.hung_after.saturating_sub(state.busy_since.map_or(Duration::ZERO, |since| since.elapsed()))
    }

    /// There is no more: waits until the disk has taken all, unless it hangs.
    pub(crate) fn finish(&self) {
        let mut state = self.shared.lock();
        state.over = true;
        self.shared.changed.notify_all();
        while !state.ended {
            let left = self.patience(&state);
            if left.is_zero() {
                drop(state);
                return self.shared.log.give_up(&hung(self.hung_after));
            }
            state = self.shared.wait(state, Some(left));
        }
    }
}

fn hung(hung_after: Duration) -> io::Error {
    let text = format!("the disk did not answer for {hung_after:.0?}");
    io::Error::new(io::ErrorKind::TimedOut, text)
}

fn write_all(shared: &Shared, wake: &dyn Fn(), hung_after: Duration) {
    let mut batch = Vec::new();
    loop {
        let mut state = shared.lock();
        while state.waiting.is_empty() && state.lost == 0 && !state.over {
            state = shared.wait(state, None);
        }
        let is_last = state.over && state.waiting.is_empty() && state.lost == 0;
        std::mem::swap(&mut batch, &mut state.waiting);
        let lost = std::mem::take(&mut state.lost);
        state.busy_since = Some(Instant::now());
        drop(state);
        shared.changed.notify_all();
        if is_last {
            shared.log.finish();
        } else {
            shared.log.write_down(&batch, lost, &hung(hung_after));
            batch.clear();
        }
        let mut state = shared.lock();
        (state.busy_since, state.ended) = (None, is_last);
        drop(state);
        shared.changed.notify_all();
        wake();
        if is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    /// Of a MiB each: several times what may wait.
    const PIECES: u64 = 30;

    #[test]
    fn a_disk_that_hangs_costs_output_but_no_time_and_what_follows_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let log = RankLog::create(&directory.path().join("rank.log"), 1 << 30).unwrap();
        // To wait for it at each piece would take more than twice the time that they may take.
        let hung_after = Duration::from_secs(2);
        let queue = DiskQueue::start_with(Arc::clone(&log), Box::new(|| {}), hung_after).unwrap();
        queue.push(b"before\n");
        let hung = log.hang();
        let piece = [vec![b'x'; (1 << 20) - 1], b"\n".to_vec()].concat();
        let began = Instant::now();
        for _ in 0..PIECES {
            queue.push(&piece);
        }
        assert!(began.elapsed() < Duration::from_secs(20), "GUARD-1");
        drop(hung);
        phalanx_testkit::eventually("the disk has what waited", HUNG_AFTER, || log.end() >= PIECES << 20);
        queue.push(b"after\n");
        queue.finish();
        assert!(log.finished());
        let loss = log.loss().unwrap();
        assert!(loss.reason.contains("did not answer"), "{loss:?}");
        assert!(loss.bytes >= (PIECES - 10) << 20, "GUARD-2: {loss:?}");
        assert_eq!(log.end(), (PIECES << 20) + 13);
        assert_eq!(log.last_lines(1).first().unwrap(), "after");
        assert!(std::fs::read(log.path()).unwrap().ends_with(b"bytes of output were lost here]\nafter\n"));
    }

    #[test]
    fn the_end_of_output_does_not_wait_for_a_disk_that_hangs() {
        let directory = tempfile::tempdir().unwrap();
        let log = RankLog::create(&directory.path().join("rank.log"), 1 << 20).unwrap();
        let queue = DiskQueue::start_with(Arc::clone(&log), Box::new(|| {}), SOON).unwrap();
        let hung = log.hang();
        queue.push(b"last words\n");
        queue.finish();
        assert!(log.finished(), "GUARD-1");
        assert_eq!(log.last_lines(1), ["last words", &notice_of(&log)]);
        log.resume("the ranks start again");
        drop(hung);
    }

    fn notice_of(log: &RankLog) -> String {
        format!(
            "[phalanx: some of this output is not in {}: the disk did not answer for 100ms]",
            log.path().display()
        )
    }

    #[test]
    fn every_write_is_told_and_the_last_one_after_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let log = RankLog::create(&directory.path().join("rank.log"), 1 << 20).unwrap();
        let seen = Arc::new(AtomicUsize::new(0));
        let (told, of) = (Arc::clone(&seen), Arc::clone(&log));
        let wake = Box::new(move || told.store(usize::from(of.finished()) + 1, Ordering::SeqCst));
        let queue = DiskQueue::start_with(Arc::clone(&log), wake, HUNG_AFTER).unwrap();
        queue.push(b"x");
        queue.finish();
        phalanx_testkit::eventually("the end is told", HUNG_AFTER, || seen.load(Ordering::SeqCst) == 2);
        assert_eq!(log.end(), 1);
    }
}
