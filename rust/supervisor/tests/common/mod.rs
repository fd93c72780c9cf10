//! What the tests of the guard share: a guard with its logs, and ranks that are shell scripts.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "for tests")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_supervisor::{
    ExitStatus, Guard, GuardEvent, GuardOptions, Launch, PipeReader, RankLog, RankPipes, ReadAt, notes, pump,
};
use phalanx_testkit::{eventually, guard_binary, leaks, temp_dir};

/// Longer than anything here takes on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

/// A guard with the given grace.
pub fn guard(grace: Duration) -> Guard {
    Guard::spawn(&GuardOptions { binary: guard_binary(), grace }).unwrap()
}

/// Runs `test` with a guard, ends it, and sees to it that nothing is left.
#[track_caller]
pub fn with_guard(grace: Duration, test: impl FnOnce(&Guard)) {
    let _leaks = leaks();
    let guard = guard(grace);
    test(&guard);
    guard.stop();
    empty(&guard);
}

/// A rank that runs `script` in a shell.
pub fn sh(rank: u32, script: &str) -> Launch {
    Launch { rank, program: "/bin/sh".into(), args: vec!["-c".into(), script.into()], ..Launch::default() }
}

/// A rank's output as it is written.
pub struct Output {
    _directory: tempfile::TempDir,
    pub log: Arc<RankLog>,
    pub readers: Vec<PipeReader>,
}

impl Output {
    /// Pumps the rank's output and ignores its notes.
    pub fn of(pipes: RankPipes) -> Output {
        Output::capped(pipes, 64 << 20)
    }

    pub fn capped(pipes: RankPipes, max_bytes: u64) -> Output {
        let directory = temp_dir("output");
        let log = RankLog::create(&directory.path().join("rank.log"), max_bytes).unwrap();
        let readers = vec![
            pump(pipes.output, Arc::clone(&log), Box::new(|| {})).unwrap(),
            notes(pipes.notes, Box::new(|_| {})).unwrap(),
        ];
        Output { _directory: directory, log, readers }
    }

    /// The same, of what is read already.
    pub fn with(directory: tempfile::TempDir, log: Arc<RankLog>, readers: Vec<PipeReader>) -> Output {
        Output { _directory: directory, log, readers }
    }

    /// What was written so far, as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&read_all(&self.log)).into_owned()
    }

    /// Waits for a line that begins with `label` and a space, and returns what follows.
    #[track_caller]
    pub fn said(&self, label: &str) -> String {
        let mut said = String::new();
        eventually(&format!("the rank says {label:?}"), LONG, || {
            let text = self.text();
            let complete = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
            let found = complete.filter_map(|line| line.trim_end().strip_prefix(label)).next();
            found.inspect(|rest| said = rest.trim().to_string()).is_some()
        });
        said
    }

    /// Waits for a line `label pid`.
    #[track_caller]
    pub fn pid(&self, label: &str) -> u32 {
        self.said(label).parse().unwrap()
    }
}

/// Every byte that can be read, skipping what was dropped.
pub fn read_all(log: &RankLog) -> Vec<u8> {
    let (mut bytes, mut offset, mut buffer) = (Vec::new(), 0, vec![0; 64 << 10]);
    loop {
        match log.read_at(offset, &mut buffer).unwrap() {
            ReadAt::Bytes(0) => return bytes,
            ReadAt::Bytes(n) => {
                bytes.extend_from_slice(&buffer[..n]);
                offset += n as u64;
            }
            ReadAt::Dropped { resume_at, .. } => offset = resume_at,
        }
    }
}

/// Launches `launch` and waits until it runs.
#[track_caller]
pub fn started(guard: &Guard, launch: &Launch) -> (u32, Output) {
    let output = Output::of(guard.launch(launch).unwrap());
    match next_event(guard) {
        GuardEvent::Started { rank, pid, at } => {
            assert_eq!(rank, launch.rank);
            assert!(at.elapsed() < LONG);
            (pid, output)
        }
        other => panic!("rank {} does not start: {other:?}", launch.rank),
    }
}

#[track_caller]
pub fn next_event(guard: &Guard) -> GuardEvent {
    guard.events().recv_timeout(LONG).unwrap_or_else(|error| panic!("no event from the guard: {error}"))
}

/// Waits for a rank's end.
#[track_caller]
pub fn ended(guard: &Guard) -> (u32, ExitStatus) {
    match next_event(guard) {
        GuardEvent::Ended { rank, how, .. } => (rank, how),
        other => panic!("expected the end of a rank: {other:?}"),
    }
}

/// The events until the last one, and when that came.
#[track_caller]
pub fn last_events(guard: &Guard) -> (Vec<GuardEvent>, Instant) {
    let mut events = Vec::new();
    loop {
        let event = next_event(guard);
        let last = matches!(event, GuardEvent::Empty | GuardEvent::Gone { .. });
        events.push(event);
        if last {
            return (events, Instant::now());
        }
    }
}

/// Waits for `Empty`, passing over ends.
#[track_caller]
pub fn empty(guard: &Guard) {
    let (events, _) = last_events(guard);
    assert_eq!(events.last(), Some(&GuardEvent::Empty));
}

/// The number in a file, once there is one.
#[track_caller]
pub fn number_in(path: &Path) -> u32 {
    phalanx_testkit::eventually_some(&format!("a number in {}", path.display()), LONG, || {
        std::fs::read_to_string(path).ok()?.strip_suffix('\n')?.trim().parse().ok()
    })
}
