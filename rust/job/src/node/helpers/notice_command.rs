//! The program that knows when its host is to go: `spark.phalanx.notice.command`.
//!
//! Clouds tell it each in their own way, mostly by a page that their hosts can read, so an operator names a program
//! that prints a notice: one line, an object of JSON. `seconds` is in how many it goes, or `time` at which (RFC 3339);
//! `reason`, or `action`, is why. All may be left out. It is the form in which one cloud's page has it.
//!
//! - NODE-63 (program-watched): the program runs beside the ranks. One that ends is started again after
//!   [`AGAIN_AFTER`], so it may look once, or stay. It ends with the attempt, with all that it started. Only the first
//!   notice is told, and one that the host goes sooner. What isn't a notice goes to the log once, and little of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use phalanx_io::pause;
use phalanx_supervisor::{Guard, GuardEvent, GuardOptions, Launch};
use phalanx_types::text::cut;
use phalanx_types::{Deadline, Error, Notice, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read};
use serde::Deserialize;

/// How long after its end the program is started again.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How often the thread looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// A host that goes sooner by less goes at the same time.
const SOONER: Duration = Duration::from_secs(1);
/// How much is said of what is no notice: of a line, and in all.
const MAX_SHOWN_BYTES: usize = 200;
const MOST_COMPLAINTS: usize = 5;
/// A longer line is none.
const MAX_LINE_BYTES: usize = 16 << 10;

/// The program, and the thread that hears it. Dropping it ends both.
pub(crate) struct NoticeCommand {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NoticeCommand {
    /// Runs `command` by the shell, below a guard of this program, until it is dropped.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the system gives no thread.
    pub(crate) fn start(
        command: String,
        guard: PathBuf,
        tell: impl Fn(Notice) + Send + 'static,
    ) -> Result<NoticeCommand> {
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let thread = std::thread::Builder::new()
            .name("phalanx-notice".into())
            .spawn(move || {
                let mut heard = Heard::new(tell);
                while !told.load(Ordering::Acquire) {
                    if let Err(why) = run(&command, &guard, &told, &mut heard) {
                        heard.complain(&why.to_string());
                    }
                    let again = Deadline::after(AGAIN_AFTER);
                    while !told.load(Ordering::Acquire) && !again.passed() {
                        pause(LOOK, again);
                    }
                }
            })
            .map_err(|e| Error::io("start the thread phalanx-notice", &e))?;
        Ok(NoticeCommand { is_over, thread: Some(thread) })
    }
}

impl Drop for NoticeCommand {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the thread phalanx-notice panicked");
        }
    }
}

/// Runs the program once, to its end or until `is_over`.
fn run(command: &str, guard: &Path, is_over: &AtomicBool, heard: &mut Heard<impl Fn(Notice)>) -> Result<()> {
    let guard = Guard::spawn(&GuardOptions { binary: guard.to_path_buf(), grace: Duration::ZERO })?;
    let launch = Launch {
        rank: 0,
        program: "/bin/sh".into(),
        args: vec!["-c".into(), command.into()],
        env: Vec::new(),
        env_remove: Vec::new(),
        cwd: None,
    };
    let pipes = guard.launch(&launch)?;
    let mut buffer = vec![0; MAX_LINE_BYTES];
    heard.rest.clear();
    while !is_over.load(Ordering::Acquire) {
        let wait = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pipes.output, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(Error::io("hear the program", &errno.into())),
        }
        match read(&pipes.output, &mut buffer) {
            Ok(0) => break,
            Ok(n) => heard.take(&buffer[..n]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(Error::io("hear the program", &errno.into())),
        }
    }
    heard.take(b"\n");
    let not_started = |event| match event {
        GuardEvent::NotStarted { reason, .. } => Some(reason),
        _ => None,
    };
    guard.events().try_iter().find_map(not_started).into_iter().for_each(|reason| heard.complain(&reason));
    Ok(())
}

/// What the program has written, over all its starts.
struct Heard<F> {
    /// The beginning of a line.
    rest: Vec<u8>,
    /// What was said of it that is no notice, as far as there was room.
    complaints: BTreeSet<String>,
    /// When the host goes by what was told; `None` in it where nobody knows.
    told: Option<Option<Instant>>,
    tell: F,
}

impl<F: Fn(Notice)> Heard<F> {
    fn new(tell: F) -> Heard<F> {
        Heard { rest: Vec::new(), complaints: BTreeSet::new(), told: None, tell }
    }

    fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend(piece);
            if self.rest.ends_with(b"\n") {
                let line = String::from_utf8_lossy(&std::mem::take(&mut self.rest)).trim().to_string();
                self.line(&line);
            } else if self.rest.len() > MAX_LINE_BYTES {
                self.rest.clear();
            }
        }
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            return;
        }
        match notice_of(line, now()) {
            Ok(notice) => self.notice(notice),
            Err(why) => self.complain(&format!("{why}: {}", cut(line, MAX_SHOWN_BYTES))),
        }
    }

    /// Tells what is news: the first notice, and one that the host goes sooner.
    fn notice(&mut self, notice: Notice) {
        let due = notice.in_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
        let is_news = match (self.told, due) {
            (None, _) => true,
            (Some(None), due) => due.is_some(),
            (Some(Some(_)), None) => false,
            (Some(Some(before)), Some(due)) => due + SOONER <= before || Instant::now() >= before,
        };
        if is_news {
            self.told = Some(due);
            (self.tell)(notice);
        }
    }

    fn complain(&mut self, why: &str) {
        if self.complaints.len() < MOST_COMPLAINTS && self.complaints.insert(why.to_string()) {
            log::warn!("spark.phalanx.notice.command has not told a notice: {why}");
        }
    }
}

/// A notice as a program prints it.
#[derive(Deserialize)]
struct Printed {
    seconds: Option<f64>,
    time: Option<String>,
    reason: Option<String>,
    action: Option<String>,
}

#[expect(clippy::disallowed_methods, reason = "a notice has the wall's time")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn notice_of(line: &str, now: SystemTime) -> std::result::Result<Notice, String> {
    let printed: Printed = serde_json::from_str(line).map_err(|_| "it is no object of JSON".to_string())?;
    let millis = |left: Duration| u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
    let in_ms = match (printed.seconds, printed.time) {
        (Some(seconds), _) => {
            let left = Duration::try_from_secs_f64(seconds);
            Some(millis(left.map_err(|_| format!("{seconds} seconds are no time to come"))?))
        }
        (None, Some(time)) => {
            let at = humantime::parse_rfc3339_weak(&time)
                .map_err(|_| format!("{time} is no time, such as 2027-01-02T03:04:05Z"))?;
            Some(millis(at.duration_since(now).unwrap_or_default()))
        }
        (None, None) => None,
    };
    let reason = printed.reason.or(printed.action).unwrap_or_else(|| "its platform says so".into());
    Ok(Notice { in_ms, reason })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use phalanx_testkit::{alive, eventually, guard_binary, temp_dir};

    use super::*;

    #[test]
    fn a_line_is_a_notice_with_its_time_or_says_what_is_wrong() {
        let now = humantime::parse_rfc3339_weak("2027-01-02T03:04:05Z").unwrap();
        for (line, in_ms, reason) in [
            (r#"{"action": "terminate", "time": "2027-01-02T03:06:05Z"}"#, Some(120_000), "terminate"),
            (r#"{"seconds": 29.5, "reason": "spot", "more": [1]}"#, Some(29_500), "spot"),
            (r#"{"time": "2026-01-02T03:06:05Z"}"#, Some(0), "its platform says so"),
            ("{}", None, "its platform says so"),
        ] {
            let notice = notice_of(line, now).unwrap();
            assert_eq!((notice.in_ms, notice.reason.as_str()), (in_ms, reason), "{line}");
        }
        for line in ["TRUE", "[]", r#"{"seconds": -1}"#, r#"{"time": "soon"}"#, "<html>404</html>"] {
            notice_of(line, now).unwrap_err();
        }
    }

    #[test]
    fn only_what_is_news_is_told_and_little_is_said_of_the_rest() {
        let told = Mutex::new(Vec::new());
        let mut heard = Heard::new(|notice: Notice| told.lock().unwrap().push(notice.in_ms));
        let lines = ["{}", "{}", r#"{"seconds": 60}"#, r#"{"seconds": 90}"#, "{}", r#"{"seconds": 30}"#];
        lines.iter().for_each(|line| heard.take(format!("{line}\n").as_bytes()));
        assert_eq!(*told.lock().unwrap(), [None, Some(60_000), Some(30_000)], "NODE-63");
        (0..50).for_each(|nth| heard.take(format!("Traceback {nth}\n").repeat(2).as_bytes()));
        assert_eq!(heard.complaints.len(), MOST_COMPLAINTS, "NODE-63");
        heard.take("x".repeat(MAX_LINE_BYTES + 1).as_bytes());
        assert!(heard.rest.is_empty());
    }

    #[test]
    fn a_program_is_heard_while_it_runs_and_ends_with_all_that_it_started() {
        let folder = temp_dir("notice");
        let pid_file = folder.path().join("pid");
        let command = format!(
            "echo not one; echo '{{\"seconds\": 60, \"reason\": \"spot\"}}'; sleep 600 & echo $! > {}; wait",
            pid_file.display()
        );
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let running =
            NoticeCommand::start(command, guard_binary(), move |notice| tells.lock().unwrap().push(notice));
        let running = running.unwrap();
        let soon = Duration::from_secs(20);
        eventually("a notice", soon, || !told.lock().unwrap().is_empty());
        eventually("the child", soon, || {
            pid_file.exists() && std::fs::metadata(&pid_file).unwrap().len() > 1
        });
        let expected = Notice { in_ms: Some(60_000), reason: "spot".into() };
        assert_eq!(*told.lock().unwrap(), [expected], "NODE-63");
        let child: u32 = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
        drop(running);
        assert!(!alive(child), "NODE-63");
    }
}
