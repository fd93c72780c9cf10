//! Worlds of ranks as processes: this test program, started again, once a rank. What a rank has to say it leaves in a
//! directory.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use phalanx_testkit::{eventually, eventually_some, temp_dir};
use phalanx_types::Error;

use super::LONG;

/// Within this a dead or cut peer is noticed by all that wait for it (docs/collectives.md).
pub const NOTICE: Duration = Duration::from_millis(1500);

/// One world at a time, since its tests assert how long something takes.
static ALONE: Mutex<()> = Mutex::new(());

pub struct Processes {
    pub ranks: Vec<Child>,
    pub directory: tempfile::TempDir,
    _alone: MutexGuard<'static, ()>,
}

/// What a rank left, and when.
#[derive(Debug)]
pub struct Outcome {
    pub text: String,
    pub at: SystemTime,
}

impl Outcome {
    /// How long after `start` the rank itself came to it: what it took to hear of it isn't counted.
    pub fn after(&self, start: SystemTime) -> Duration {
        self.at.duration_since(start).unwrap_or_default()
    }
}

impl Processes {
    /// `command` starts a rank, given its number and the directory, but for its standard output.
    pub fn start(ranks: usize, command: impl Fn(usize, &Path) -> Command) -> Processes {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = temp_dir("collective");
        let start = |rank| command(rank, directory.path()).stdout(Stdio::null()).spawn().unwrap();
        Processes { ranks: (0..ranks).map(start).collect(), directory, _alone: alone }
    }

    pub fn outcome(&self, rank: usize, within: Duration) -> Outcome {
        let path = self.directory.path().join(format!("outcome.{rank}"));
        let written =
            eventually_some(&format!("rank {rank} ends"), within, || fs::read_to_string(&path).ok());
        let (at, text) = written.split_once(' ').unwrap();
        let at = UNIX_EPOCH + Duration::from_micros(at.parse().unwrap());
        Outcome { text: text.to_owned(), at }
    }

    pub fn outcomes(&self, within: Duration) -> Vec<Outcome> {
        (0..self.ranks.len()).map(|rank| self.outcome(rank, within)).collect()
    }

    pub fn wait_until_ready(&self) {
        for rank in 0..self.ranks.len() {
            let path = self.directory.path().join(format!("ready.{rank}"));
            eventually("all ranks have joined", LONG, || path.exists());
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.kill();
            let _ = rank.wait();
        }
    }
}

/// Says that this rank has joined.
pub fn is_ready(directory: &Path, rank: usize) {
    fs::write(directory.join(format!("ready.{rank}")), "").unwrap();
}

/// An error with its kind.
pub fn in_words(error: &Error) -> String {
    format!("{}: {error}", error.kind().name())
}

/// Leaves what became of this rank, `at` some time.
pub fn leave_outcome(directory: &Path, rank: usize, at: SystemTime, text: &str) {
    let unfinished = directory.join(format!("unfinished.{rank}"));
    let at = at.duration_since(UNIX_EPOCH).unwrap().as_micros();
    fs::write(&unfinished, format!("{at} {text}")).unwrap();
    fs::rename(&unfinished, directory.join(format!("outcome.{rank}"))).unwrap();
}
