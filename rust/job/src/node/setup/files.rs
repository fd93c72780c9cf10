//! A node's files. They are private to the user and removed with the node, except the logs of the newest jobs.
//!
//! - NODE-48 (in-use): nobody removes a job's folder while a node of the job is on this host, in whatever process and
//!   whatever attempt: each holds the folder's lock, which ends with its process at the latest.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use phalanx_io::write_whole;
use phalanx_types::contract::{FILE_FETCHED, FILE_FLIGHT_RECORDER};
use phalanx_types::{Attempt, Error, Result};

/// How many jobs' logs stay in a work directory.
const KEEP_JOBS: usize = 8;
/// How often a folder is made that others may be removing.
const MAKE_TRIES: u32 = 1000;
/// The file that says that a job has ended, and how many ended before it.
const ENDED: &str = ".ended";
/// The file that each node of a job holds a shared lock of.
const IN_USE: &str = ".in-use";

/// Where a node's files are: the logs of its ranks, which stay, and what is theirs alone, which goes with this value.
pub(crate) struct NodeFiles {
    work: PathBuf,
    /// Where the logs are.
    pub(crate) job: PathBuf,
    /// The payload, and a folder for each rank.
    pub(crate) private: PathBuf,
    /// NODE-48; `None` where the file system knows no locks.
    lock: Option<File>,
}

impl NodeFiles {
    /// For the node of `partition` that begins with `attempt`: one of an earlier stage may still be tidying up.
    pub(crate) fn make(work: &Path, job_id: &str, partition: u32, attempt: Attempt) -> Result<NodeFiles> {
        let job = work.join(format!("phalanx-{job_id}"));
        let private = job.join(format!("task-{partition}{}", suffix(attempt)));
        let lock = hold(&job)?;
        let files = NodeFiles { work: work.to_path_buf(), job, private, lock };
        private_dir(&files.private)?;
        Ok(files)
    }
}

impl NodeFiles {
    /// The log of a rank whose node began with `attempt`.
    pub(crate) fn log(&self, rank: u32, attempt: Attempt) -> PathBuf {
        self.job.join(format!("rank-{rank}{}.log", suffix(attempt)))
    }

    /// Where torch leaves what its flight recorder has of this node's ranks; a rank's number follows.
    pub(crate) fn flight_recorder(&self) -> PathBuf {
        self.job.join(FILE_FLIGHT_RECORDER)
    }

    /// What is there of a rank.
    pub(crate) fn flight_recorder_of(&self, rank: u32) -> PathBuf {
        self.job.join(format!("{FILE_FLIGHT_RECORDER}{rank}"))
    }

    /// Has a rank find the folder of the blocks that ranks of the job's nodes here have fetched.
    pub(crate) fn link_fetched(&self, rank_dir: &Path) -> Result<()> {
        let fetched = self.fetched();
        private_dir(&fetched)?;
        let link = rank_dir.join(FILE_FETCHED);
        std::os::unix::fs::symlink(&fetched, &link)
            .map_err(|e| Error::io(format!("make the link {}", link.display()), &e))
    }

    fn fetched(&self) -> PathBuf {
        self.job.join(FILE_FETCHED)
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

fn suffix(attempt: Attempt) -> String {
    if attempt.is_first() { String::new() } else { format!("-attempt-{attempt}") }
}

impl Drop for NodeFiles {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_dir_all(&self.private) {
            log::warn!("{} can't be removed: {e}", self.private.display());
        }
        // Ranks of other nodes that still want them fetch them again. One may be adding another just now.
        let fetched = self.fetched();
        let remove = || std::fs::remove_dir_all(&fetched).err();
        match (0..MAKE_TRIES).find_map(|_| match remove() {
            Some(e) if e.kind() == ErrorKind::DirectoryNotEmpty => None,
            done => Some(done),
        }) {
            Some(Some(e)) if e.kind() != ErrorKind::NotFound => {
                log::warn!("{} can't be removed: {e}", fetched.display());
            }
            _ => {}
        }
        let ended = ended_jobs(&self.work);
        let number = ended.last().map_or(1, |(last, _)| last + 1);
        let marker = self.job.join(ENDED);
        if let Err(e) = write_whole(&marker, number.to_string().as_bytes()) {
            log::warn!("{e}");
            // A full disk has room for a name, mostly, and the job is to be forgotten to make more.
            let _ = File::create(marker);
        }
        self.lock = None;
        forget(ended, &self.job);
    }
}

pub(crate) fn private_dir(path: &Path) -> Result<()> {
    make_private(path).map_err(|e| Error::io(format!("make the folder {}", path.display()), &e))
}

fn make_private(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Makes a job's folder and takes its lock, shared with the job's other nodes.
fn hold(job: &Path) -> Result<Option<File>> {
    let path = job.join(IN_USE);
    let mut tries = 0;
    loop {
        tries += 1;
        // Whoever removes the folder may do so while it is looked at. Or it can't be made: something else stands
        // there, or above it a link that leads nowhere.
        let is_something_else = || job.symlink_metadata().is_ok_and(|found| !found.is_dir());
        match make_private(job) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists && !is_something_else() && tries < MAKE_TRIES => {
                continue;
            }
            made => made.map_err(|e| Error::io(format!("make the folder {}", job.display()), &e))?,
        }
        let file = match File::options().create(true).append(true).open(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => continue, // the folder was just removed
            file => file.map_err(|e| Error::io(format!("write {}", path.display()), &e))?,
        };
        // Waits for a removal of the folder at the most.
        if let Err(e) = file.lock_shared() {
            log::debug!("{} can't be locked: {e}", path.display());
            return Ok(None);
        }
        if is_at(&file, &path) {
            return Ok(Some(file));
        }
    }
}

/// Whether an open file is the one at `path` still.
fn is_at(file: &File, path: &Path) -> bool {
    matches!((file.metadata(), path.metadata()), (Ok(open), Ok(there)) if open.ino() == there.ino())
}

/// Removes a job's folder, unless a node of the job holds it.
fn remove_unless_in_use(job: &Path) {
    // Made where it isn't there: a node that is about to make it waits for this lock, and then looks again.
    let path = job.join(IN_USE);
    let Ok(file) = File::options().create(true).append(true).open(&path) else { return };
    // Where the file system knows no locks, nobody holds it. Another node may have removed the folder meanwhile.
    if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && is_at(&file, &path) {
        // Out of the way first, whole: a node that begins now makes another one. Another node of this host may be
        // removing it, too, or have been killed while it did.
        let mut away = job.as_os_str().to_owned();
        away.push("-removed");
        let _ = std::fs::remove_dir_all(&away);
        let _ = std::fs::rename(job, &away).and_then(|()| std::fs::remove_dir_all(&away));
    }
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
        remove_unless_in_use(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end_jobs(work: &Path, name: &str) {
        for i in 0..KEEP_JOBS + 1 {
            drop(NodeFiles::make(work, &format!("{name}-{i}"), 0, Attempt::first()).unwrap());
        }
    }

    #[test]
    fn a_job_of_which_a_node_still_runs_keeps_its_files() {
        let work = tempfile::tempdir().unwrap();
        let ended = NodeFiles::make(work.path(), "runs", 0, Attempt::first()).unwrap();
        let runs = NodeFiles::make(work.path(), "runs", 1, Attempt::first()).unwrap();
        std::fs::write(runs.log(1, Attempt::first()), "output").unwrap();
        drop(ended);
        end_jobs(work.path(), "first");
        assert!(runs.log(1, Attempt::first()).exists() && runs.private.exists(), "NODE-48");
        let log = runs.log(1, Attempt::first());
        drop(runs);
        assert!(log.exists(), "the logs of the job that has just ended");
        end_jobs(work.path(), "second");
        assert!(!log.exists());
    }

    #[test]
    fn what_ranks_have_fetched_is_one_folder_for_the_jobs_nodes_and_goes_with_them() {
        let work = tempfile::tempdir().unwrap();
        let nodes =
            [0, 1].map(|partition| NodeFiles::make(work.path(), "job", partition, Attempt::first()).unwrap());
        let ranks = [0, 1].map(|rank| nodes[rank as usize].rank(rank).unwrap());
        for (node, rank) in nodes.iter().zip(&ranks) {
            node.link_fetched(rank).unwrap();
        }
        std::fs::write(ranks[0].join(FILE_FETCHED).join("block"), "rows").unwrap();
        assert_eq!(std::fs::read_to_string(ranks[1].join(FILE_FETCHED).join("block")).unwrap(), "rows");
        let [one, other] = nodes;
        drop(one);
        assert!(ranks[1].exists(), "another node's rank runs on");
        other.rank(1).and_then(|rank| other.link_fetched(&rank)).unwrap();
        drop(other);
        assert!(!work.path().join("phalanx-job").join(FILE_FETCHED).exists());
    }

    #[test]
    fn a_folder_that_is_being_removed_is_made_again() {
        let work = tempfile::tempdir().unwrap();
        let job = work.path().join("phalanx-job");
        for _ in 0..50 {
            drop(NodeFiles::make(work.path(), "job", 0, Attempt::first()).unwrap());
            std::thread::scope(|threads| {
                threads.spawn(|| remove_unless_in_use(&job));
                threads.spawn(|| remove_unless_in_use(&job));
                let files = NodeFiles::make(work.path(), "job", 1, Attempt::first()).unwrap();
                assert!(files.private.exists(), "NODE-48");
            });
        }
    }

    #[test]
    fn a_work_folder_that_is_a_link_to_nowhere_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().join("work");
        std::os::unix::fs::symlink(dir.path().join("unmounted"), &work).unwrap();
        let e = NodeFiles::make(&work, "job", 0, Attempt::first()).err().unwrap();
        assert!(e.to_string().contains("make the folder"), "{e}");
    }

    #[test]
    fn the_newest_jobs_logs_stay_whatever_the_clock_says() {
        let work = tempfile::tempdir().unwrap();
        let long_ago = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        for i in 0..KEEP_JOBS + 5 {
            let files = NodeFiles::make(work.path(), &format!("job-{i}"), 0, Attempt::first()).unwrap();
            let log = files.log(0, Attempt::first());
            drop(files);
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
