//! A node's files: private to the user, gone with the node but for the logs, of which the newest jobs' are kept.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use phalanx_types::{Error, Result};

/// How many jobs' logs stay in a work directory.
const KEEP_JOBS: usize = 8;
/// The file that says that a job has ended, and as the how manieth.
const ENDED: &str = ".ended";

/// Where a node's files are: the logs of its ranks, which stay, and what is theirs alone, which goes with this value.
pub(crate) struct Folder {
    work: PathBuf,
    /// Where the logs are.
    pub(crate) job: PathBuf,
    /// The payload, and a folder for each rank.
    pub(crate) private: PathBuf,
}

impl Folder {
    /// For the node of `partition` that begins with `attempt`: one of an earlier stage may still be tidying up.
    pub(crate) fn make(work: &Path, job_id: &str, partition: u32, attempt: u32) -> Result<Folder> {
        let job = work.join(format!("phalanx-{job_id}"));
        let private = job.join(format!("task-{partition}{}", suffix(attempt)));
        let folder = Folder { work: work.to_path_buf(), job, private };
        private_dir(&folder.job)?;
        private_dir(&folder.private)?;
        Ok(folder)
    }
}

impl Folder {
    /// The log of a rank whose node began with `attempt`.
    pub(crate) fn log(&self, rank: u32, attempt: u32) -> PathBuf {
        self.job.join(format!("rank-{rank}{}.log", suffix(attempt)))
    }

    /// A rank's own folder, empty.
    pub(crate) fn rank(&self, rank: u32) -> Result<PathBuf> {
        let dir = self.private.join(format!("rank-{rank}"));
        match std::fs::remove_dir_all(&dir) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(format!("empty the folder {}", dir.display()), &e));
            }
            _ => private_dir(&dir)?,
        }
        Ok(dir)
    }
}

fn suffix(attempt: u32) -> String {
    if attempt == 0 { String::new() } else { format!("-attempt-{attempt}") }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.private) {
            log::warn!("{} can't be removed: {e}", self.private.display());
        }
        let ended = ended_jobs(&self.work);
        let number = ended.last().map_or(1, |(last, _)| last + 1);
        if let Err(e) = private_file(&self.job.join(ENDED), number.to_string().as_bytes()) {
            log::warn!("{e}");
        }
        forget(ended, &self.job);
    }
}

pub(crate) fn private_dir(path: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| Error::io(format!("make the folder {}", path.display()), &e))
}

pub(crate) fn private_file(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write as _;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(path)
        .and_then(|mut file| file.write_all(bytes))
        .map_err(|e| Error::io(format!("write {}", path.display()), &e))
}

/// The jobs that have ended in a work directory, oldest first, by the numbers that they left: the system's clock may
/// have been set back between two of them. One that could not leave its number counts as the oldest.
fn ended_jobs(work_dir: &Path) -> Vec<(u64, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(work_dir) else { return Vec::new() };
    let mut ended: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("phalanx-"))
        .filter_map(|entry| {
            let number = std::fs::read_to_string(entry.path().join(ENDED)).ok()?;
            Some((number.parse().unwrap_or(0), entry.path()))
        })
        .collect();
    ended.sort_unstable();
    ended
}

/// Removes the logs of jobs that had ended before the one at `newest`, but for the newest few.
fn forget(ended: Vec<(u64, PathBuf)>, newest: &Path) {
    for (_, path) in ended.iter().rev().filter(|(_, path)| path != newest).skip(KEEP_JOBS - 1) {
        // Another node of this host may be removing it, too.
        let _ = std::fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_jobs_logs_stay_whatever_the_clock_says() {
        let work = tempfile::tempdir().unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        for i in 0..KEEP_JOBS + 5 {
            let folder = Folder::make(work.path(), &format!("job-{i}"), 0, 0).unwrap();
            let log = folder.log(0, 0);
            drop(folder);
            assert!(log.parent().unwrap().exists(), "the logs of the job that has just ended");
            // As if the clock were set back more with every job.
            let mark = std::fs::File::open(log.with_file_name(ENDED)).unwrap();
            let times =
                std::fs::FileTimes::new().set_modified(long_ago - std::time::Duration::from_secs(i as u64));
            mark.set_times(times).unwrap();
        }
        let mut left: Vec<_> = ended_jobs(work.path()).into_iter().map(|(number, _)| number).collect();
        left.sort_unstable();
        assert_eq!(left, (6..=13).collect::<Vec<u64>>());
    }
}
