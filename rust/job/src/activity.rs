//! What a rank is doing, as its node sees it: its output, the notes of its watchdog, and its process's state.
//!
//! ACTIVITY-1: progress is output, Python that ran in the main thread, a phase, a report, or a collective operation of the
//! `phalanx` backend that began or ended. That a rank is alive is none. ACTIVITY-2: nothing here waits for a rank.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use phalanx_types::message::RankActivity;
use phalanx_types::stacks::{MAX_STACKS_BYTES, RankStacks};

use crate::ranks::Rank;

/// How long a rank's stacks may take to be written: a process that swaps, or one whose main thread is in the kernel.
const STACKS_WAIT: Duration = Duration::from_secs(3);
/// A file of stacks that doesn't grow for this long is whole.
const STACKS_SETTLE: Duration = Duration::from_millis(150);

/// What a rank's notes have told.
#[derive(Debug)]
pub(crate) struct Activity {
    pid: Option<u32>,
    progress: Instant,
    doing: String,
    /// How many collective operations had begun and ended.
    operations: u64,
    step: Option<u64>,
    step_us: Option<u64>,
    values: String,
}

/// A line of JSON from a rank.
type Fields = serde_json::Map<String, serde_json::Value>;

impl Activity {
    pub(crate) fn new() -> Activity {
        Activity {
            pid: None,
            progress: Instant::now(),
            doing: String::new(),
            operations: 0,
            step: None,
            step_us: None,
            values: String::new(),
        }
    }

    /// The rank's process runs.
    pub(crate) fn started(&mut self, pid: u32) {
        self.pid = Some(pid);
        self.progress = Instant::now();
    }

    /// Takes a note; whether it was a report.
    pub(crate) fn take(&mut self, note: &Fields) -> bool {
        let now = Instant::now();
        if note.contains_key("phase") {
            self.progress = now;
        }
        if let Some(beat) = note.get("beat") {
            let operations = beat["operations"].as_u64().unwrap_or(0);
            if beat["ran"].as_bool() == Some(true) || operations != self.operations {
                self.progress = now;
            }
            self.operations = operations;
            self.doing = beat["doing"].as_str().unwrap_or_default().chars().take(120).collect();
        }
        let Some(report) = note.get("report") else { return false };
        self.progress = now;
        self.step = report["step"].as_u64().or(self.step);
        self.step_us = report["step_us"].as_u64().or(self.step_us);
        self.values = report["values"].to_string();
        true
    }
}

/// What is told of a rank that runs.
pub(crate) fn told(rank: &Rank) -> RankActivity {
    let Activity { progress, doing, step, step_us, values, .. } = &rank.activity;
    let last = rank.log.last_output().map_or(*progress, |output| output.max(*progress));
    RankActivity {
        rank: rank.rank,
        idle_ms: u64::try_from(last.elapsed().as_millis()).unwrap_or(u64::MAX),
        stopped: rank.activity.pid.is_some_and(is_stopped),
        doing: doing.clone(),
        step: *step,
        step_us: *step_us,
        values: values.clone(),
    }
}

/// Whether a process is stopped; false for one that is gone.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may hold anything.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'T' | b't'))
}

/// A request for the stacks of a node's ranks.
#[derive(Debug)]
pub(crate) struct Asked {
    request: u32,
    until: Instant,
    waiting: BTreeMap<u32, Growing>,
    stacks: Vec<RankStacks>,
}

/// A file that a rank writes its stacks to.
#[derive(Debug)]
struct Growing {
    path: PathBuf,
    from: u64,
    end: u64,
    changed: Instant,
}

impl Asked {
    /// Has each rank that can write its stacks do so; `signal` sends a rank the signal for that.
    pub(crate) fn of(request: u32, ranks: &[Rank], mut signal: impl FnMut(u32)) -> Asked {
        let now = Instant::now();
        let mut asked =
            Asked { request, until: now + STACKS_WAIT, waiting: BTreeMap::new(), stacks: Vec::new() };
        for rank in ranks.iter().filter(|rank| rank.over_at().is_none()) {
            let path = rank.dir.join("stacks");
            let why_not = match (std::fs::metadata(&path), rank.activity.pid) {
                (_, Some(pid)) if is_stopped(pid) => "(its process is stopped)",
                // The rank makes the file when it can take the signal, which would end it before.
                (Err(_), _) => "(it has no Python stacks to show, or has only just begun)",
                (Ok(file), _) => {
                    let from = file.len();
                    let growing = Growing { path, from, end: from, changed: now };
                    asked.waiting.insert(rank.rank, growing);
                    signal(rank.rank);
                    continue;
                }
            };
            asked.stacks.push(RankStacks { rank: rank.rank, text: why_not.into() });
        }
        asked
    }

    /// The answer, once it is whole or nothing more is waited for.
    pub(crate) fn answer(&mut self, now: Instant) -> Option<(u32, Vec<RankStacks>)> {
        let late = now >= self.until;
        let Asked { waiting, stacks, .. } = self;
        waiting.retain(|rank, file| {
            let end = std::fs::metadata(&file.path).map_or(file.end, |found| found.len());
            if end != file.end {
                (file.end, file.changed) = (end, now);
            }
            let whole = file.end > file.from && now >= file.changed + STACKS_SETTLE;
            if whole || late {
                stacks.push(RankStacks { rank: *rank, text: written(&file.path, file.from) });
            }
            !(whole || late)
        });
        self.waiting.is_empty().then(|| (self.request, std::mem::take(&mut self.stacks)))
    }
}

fn written(path: &Path, from: u64) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = std::fs::File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(MAX_STACKS_BYTES as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) if !bytes.is_empty() => String::from_utf8_lossy(&bytes).into_owned(),
        _ => "(it did not answer in time)".into(),
    }
}
