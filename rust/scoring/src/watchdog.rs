//! Ends the process of a model that hangs for a task that has gone (SCORE-27).
//!
//! While Python computes a batch or makes the model, nobody hears the tasks' sockets. Where it never returns, the
//! process would stay until its owner ends, and each later task would wait for it. So a thread looks whether the task
//! is still there that this is for. It never reads what tasks say, and as long as the oldest work is a living task's it
//! does nothing, however long that takes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use phalanx_types::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, getpid, kill_process};

use crate::socket::wait;

/// How often it looks, at the least.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Watches the oldest work that is under way: works end in the order in which they began.
#[derive(Debug)]
pub(crate) struct Watchdog {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    process: u32,
}

#[derive(Debug, Default)]
struct Shared {
    works: Mutex<Works>,
    /// Says that it is over.
    over: Condvar,
}

#[derive(Debug, Default)]
struct Works {
    /// The sockets of the tasks that they are for.
    under_way: VecDeque<Arc<OwnedFd>>,
    /// How many are done, which is also the number of the oldest that is not.
    done: u64,
    is_over: bool,
}

impl Watchdog {
    /// Calls `give_up`, once, where the same work has been under way for `patience` and its task gone, and tells it for
    /// how long. Slow work for a task that has gone can't be told from work that hangs, and nobody wants what it makes.
    /// So it ends the process, too, which costs the other tasks a restart.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if there is no thread.
    pub(crate) fn start(
        patience: Duration,
        give_up: impl FnOnce(Duration) + Send + 'static,
    ) -> Result<Watchdog> {
        let shared = Arc::new(Shared::default());
        let its = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("phalanx-watchdog".into())
            .spawn(move || its.watch(patience, give_up))
            .map_err(|error| Error::io("watch a model", &error))?;
        Ok(Watchdog { shared, thread: Some(thread), process: std::process::id() })
    }

    /// Work begins, for the task at the other end of this socket.
    pub(crate) fn begin(&self, task: &Arc<OwnedFd>) {
        self.shared.works().under_way.push_back(Arc::clone(task));
    }

    /// The oldest work is done.
    pub(crate) fn end(&self) {
        let mut works = self.shared.works();
        if works.under_way.pop_front().is_some() {
            works.done += 1;
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // A fork of the process has no such thread to wait for, and the lock may be held there for good.
        if self.process != std::process::id() {
            return;
        }
        self.shared.works().is_over = true;
        self.shared.over.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn works(&self) -> MutexGuard<'_, Works> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, patience: Duration, give_up: impl FnOnce(Duration)) {
        let mut absence = Absence { patience, since: None };
        let look_every = LOOK_EVERY.min(patience / 4);
        let mut works = self.works();
        loop {
            let waited = self.over.wait_timeout_while(works, look_every, |works| !works.is_over);
            works = waited.unwrap_or_else(PoisonError::into_inner).0;
            if works.is_over {
                return;
            }
            let gone = works.under_way.front().filter(|task| has_gone(task)).map(|_| works.done);
            if let Some(time) = absence.seen(gone, Instant::now()) {
                // With the lock, so that the work doesn't become done between the look and the end.
                return give_up(time);
            }
        }
    }
}

/// Whether nobody has the other end any more.
fn has_gone(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    wait(&mut fds, Duration::ZERO);
    !fds[0].revents().is_empty()
}

/// For how long the same work has been under way for a task that has gone.
#[derive(Debug)]
struct Absence {
    patience: Duration,
    /// The work's number, and when its task was first seen to have gone.
    since: Option<(u64, Instant)>,
}

impl Absence {
    /// Takes in what a look shows: the number of the work under way if its task has gone. If that has been so for too
    /// long, the answer says for how long.
    fn seen(&mut self, gone: Option<u64>, now: Instant) -> Option<Duration> {
        self.since = gone.map(|work| match self.since {
            Some((before, since)) if before == work => (work, since),
            _ => (work, now),
        });
        let time = now.duration_since(self.since?.1);
        (time >= self.patience).then_some(time)
    }
}

/// Ends this process at once, and says why on its stderr. Nothing of Python's runs any more: it may hang, too.
#[allow(clippy::disallowed_methods, reason = "as long as a process is there, its id is its own")]
pub(crate) fn end_process(time: Duration) {
    let seconds = time.as_secs();
    let said = format!(
        "[phalanx] the process of a model ends: it has worked {seconds} s for a task that has gone, and may hang\n"
    );
    // Not through `io::stderr()`'s own lock, and not into a pipe that is full: either may last for ever.
    let stderr = io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    wait(&mut fds, Duration::ZERO);
    if fds[0].revents().contains(PollFlags::OUT) {
        let _ = rustix::io::write(&stderr, said.as_bytes());
    }
    let _ = kill_process(getpid(), Signal::KILL);
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};

    use phalanx_io::pause;
    use phalanx_types::Deadline;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    const PATIENCE: Duration = Duration::from_millis(40);
    /// A deadline for what is to happen.
    const SOON: Duration = Duration::from_secs(20);
    /// Tells a test that it is to end its process.
    const ENDS: &str = "PHALANX_TEST_ENDS";

    fn watched() -> (Watchdog, Receiver<Duration>) {
        let (gave_up, given_up) = channel();
        (Watchdog::start(PATIENCE, move |time| gave_up.send(time).unwrap()).unwrap(), given_up)
    }

    /// The model's end of a connection, and the task's.
    fn connected() -> (Arc<OwnedFd>, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        (Arc::new(ours), theirs)
    }

    #[test]
    fn a_work_is_given_up_where_its_task_has_gone_and_not_before() {
        let (watchdog, given_up) = watched();
        let (first, its_task) = connected();
        watchdog.begin(&first);
        assert_eq!(
            given_up.recv_timeout(5 * PATIENCE),
            Err(RecvTimeoutError::Timeout),
            "SCORE-27: it's there"
        );
        // What a task says is none of its business.
        rustix::io::write(&its_task, b"something").unwrap();
        drop(its_task);
        assert!(given_up.recv_timeout(SOON).unwrap() >= PATIENCE, "SCORE-27");
    }

    #[test]
    fn the_oldest_work_is_watched_and_none_that_is_done() {
        let (watchdog, given_up) = watched();
        let ((first, _its_task), (second, gone)) = (connected(), connected());
        drop(gone);
        watchdog.begin(&second);
        watchdog.end();
        watchdog.end();
        watchdog.begin(&first);
        watchdog.begin(&second);
        assert_eq!(given_up.recv_timeout(5 * PATIENCE), Err(RecvTimeoutError::Timeout), "SCORE-27");
        watchdog.end();
        assert!(given_up.recv_timeout(SOON).is_ok(), "SCORE-27");
    }

    #[test]
    fn one_that_is_dropped_looks_no_more_and_holds_nobody_up() {
        let began = Instant::now();
        for _ in 0..60 {
            let (gave_up, given_up) = channel();
            let patient = Watchdog::start(Duration::from_secs(3600), move |time| gave_up.send(time).unwrap());
            let (work, _) = connected();
            patient.as_ref().unwrap().begin(&work);
            drop(patient);
            assert_eq!(given_up.try_recv(), Err(TryRecvError::Disconnected), "the thread has ended");
            assert_eq!(Arc::strong_count(&work), 1);
        }
        assert!(began.elapsed() < SOON, "no drop waits for a look");
    }

    #[test]
    fn the_process_ends_at_once_and_says_why_where_its_stderr_takes_that() {
        if std::env::var_os(ENDS).is_some() {
            end_process(Duration::from_millis(30_250));
        }
        for is_full in [false, true] {
            let (mut reader, writer) = std::io::pipe().unwrap();
            let mut has = 0;
            rustix::io::ioctl_fionbio(&writer, true).unwrap();
            while is_full && let Ok(bytes) = rustix::io::write(&writer, &[b'.'; 4096]) {
                has += bytes;
            }
            rustix::io::ioctl_fionbio(&writer, false).unwrap();
            let name = "watchdog::tests::the_process_ends_at_once_and_says_why_where_its_stderr_takes_that";
            let mut ending = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "--nocapture", name])
                .env(ENDS, "")
                .stdout(Stdio::null())
                .stderr(writer)
                .spawn()
                .unwrap();
            let deadline = Deadline::after(SOON);
            let ended = loop {
                match ending.try_wait().unwrap() {
                    Some(ended) => break ended,
                    None if deadline.passed() => ending.kill().unwrap(),
                    None => pause(Duration::from_millis(5), deadline),
                }
            };
            assert!(ended.signal() == Some(Signal::KILL.as_raw()) && !deadline.passed(), "SCORE-27");
            let mut said = String::new();
            reader.read_to_string(&mut said).unwrap();
            let told =
                said[has..].starts_with("[phalanx] the process of a model ends: it has worked 30 s for");
            assert_eq!(told, !is_full, "{}", &said[has..]);
        }
    }

    proptest! {
        /// It ends exactly where the looks of the last `patience`, and one before these, have all seen the same.
        #[test]
        fn only_an_unbroken_absence_counts(
            looks in proptest::collection::vec((0_u64..30, proptest::option::weighted(0.9, 0_u64..2)), 0..60),
        ) {
            let patience = Duration::from_millis(60);
            let mut absence = Absence { patience, since: None };
            let mut now = Instant::now();
            let mut seen: Vec<(Instant, Option<u64>)> = Vec::new();
            for (millis, gone) in looks {
                now += Duration::from_millis(millis);
                seen.push((now, gone));
                let same = seen.iter().rev().take_while(|(_, before)| *before == gone).last();
                let time = gone.and(same).map(|(since, _)| now - *since);
                prop_assert_eq!(absence.seen(gone, now), time.filter(|time| *time >= patience), "SCORE-27");
            }
        }
    }
}
