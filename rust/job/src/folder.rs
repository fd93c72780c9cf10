//! A node's files: private to the user, gone with the node but for the logs, of which the newest jobs' are kept.

use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use phalanx_types::{Error, Result};

/// How many jobs' logs stay in a work directory.
const KEEP_JOBS: usize = 8;

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
        if let Err(e) = private_file(&self.job.join(".ended"), b"") {
            log::warn!("{e}");
        }
        forget_old_jobs(&self.work);
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

/// Removes the logs of jobs that ended, but for the newest few.
fn forget_old_jobs(work_dir: &Path) {
    let Ok(entries) = std::fs::read_dir(work_dir) else { return };
    let mut ended: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("phalanx-"))
        .filter_map(|entry| {
            let ended_at = entry.path().join(".ended").metadata().ok()?.modified().ok()?;
            Some((ended_at, entry.path()))
        })
        .collect();
    ended.sort_unstable();
    for (_, path) in ended.iter().rev().skip(KEEP_JOBS) {
        // Another node of this host may be removing it, too.
        let _ = std::fs::remove_dir_all(path);
    }
}
