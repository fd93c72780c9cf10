//! Where a run's logs stay when its hosts are gone: a folder that hosts share, or one that only the node's process can
//! write to.
//!
//! NODE-26 (costs-no-run): that logs can't be copied fails no run, and holds none up for longer than [`PATIENCE`].

use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_io::copy_whole;
use phalanx_types::{Error, ErrorKind, Job, Result};

use crate::node::callbacks::NodeCallbacks;
use crate::node::setup::files::private_dir;

/// How long the copies may take: less than a driver waits for its stage to end.
const PATIENCE: Duration = Duration::from_secs(25);

/// Where a job's logs are copied to, if that is no folder of the machine: only a JVM of Spark's can write there.
pub fn logs_uri(job: &Job) -> Option<&str> {
    let directory = job.logs.directory.as_str();
    (!directory.is_empty() && local(directory).is_none()).then_some(directory)
}

/// The folder of this machine, or of a disk that machines share, to which a job's logs are copied, if there is one.
pub fn logs_folder(job: &Job) -> Option<String> {
    let directory = Some(job.logs.directory.as_str()).filter(|directory| !directory.is_empty())?;
    local(&folder_of(directory, &job.id)).map(str::to_string)
}

fn folder_of(directory: &str, job: &str) -> String {
    format!("{}/phalanx-{job}", directory.trim_end_matches('/'))
}

/// Copies `files`, to which nobody writes any more, to a folder of the job's own in `directory`.
pub(crate) fn keep(directory: &str, job: &str, files: Vec<PathBuf>, callbacks: &mut dyn NodeCallbacks) {
    if directory.is_empty() || files.is_empty() {
        return;
    }
    let folder = folder_of(directory, job);
    let kept = match local(&folder) {
        Some(folder) => copy(files, PathBuf::from(folder)),
        None => callbacks.copy_files(&files, &folder),
    };
    if let Err(e) = kept {
        log::warn!("job {job}: not all logs of its ranks on this host were copied to {folder}: {e}");
    }
}

/// The path of a folder of this machine.
fn local(folder: &str) -> Option<&str> {
    match folder.strip_prefix("file:") {
        Some(path) => path.strip_prefix("//").or(Some(path)),
        None => folder.starts_with('/').then_some(folder),
    }
}

/// In a thread of its own: a shared folder may hang.
fn copy(files: Vec<PathBuf>, folder: PathBuf) -> Result<()> {
    let (sender, copied) = crossbeam_channel::bounded(1);
    std::thread::Builder::new()
        .name("phalanx-log-copy".into())
        .spawn(move || drop(sender.send(copy_now(&files, &folder))))
        .map_err(|e| Error::io("start a thread", &e))?;
    let late = |_| Err(Error::new(ErrorKind::Timeout, format!("it takes longer than {PATIENCE:?}")));
    copied.recv_timeout(PATIENCE).unwrap_or_else(late)
}

fn copy_now(files: &[PathBuf], folder: &Path) -> Result<()> {
    let shared = folder.parent().unwrap_or(folder);
    if !shared.is_dir() {
        // Made here, it would be on this host only: most likely nothing is mounted.
        return Err(Error::new(ErrorKind::MissingFile, format!("there is no folder {}", shared.display())));
    }
    private_dir(folder)?;
    files.iter().try_for_each(|file| copy_whole(file, &folder.join(file.file_name().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use phalanx_supervisor::RankLog;

    use super::*;

    #[derive(Default)]
    struct Told(Vec<(Vec<PathBuf>, String)>);

    impl NodeCallbacks for Told {
        fn interrupted(&mut self) -> Option<String> {
            None
        }

        fn copy_files(&mut self, files: &[PathBuf], folder: &str) -> Result<()> {
            self.0.push((files.to_vec(), folder.into()));
            Ok(())
        }
    }

    #[test]
    fn a_folder_of_this_machine_gets_them_whole_and_a_uri_is_the_process_s() {
        let (work, shared) = (phalanx_testkit::temp_dir("work"), phalanx_testkit::temp_dir("shared"));
        let log = RankLog::create(&work.path().join("rank-0.log"), 1 << 20).unwrap();
        std::fs::write(log.path(), "hello\n").unwrap();
        let mut told = Told::default();
        let path = shared.path().display().to_string();
        for (job, directory) in
            [("a", path.clone()), ("b", format!("file:{path}/")), ("c", format!("file://{path}"))]
        {
            keep(&directory, job, log.files(), &mut told);
            let copied = shared.path().join(format!("phalanx-{job}/rank-0.log"));
            assert_eq!(std::fs::read_to_string(copied).unwrap(), "hello\n", "{directory}");
        }
        assert!(told.0.is_empty());
        keep("s3a://bucket/logs", "d", log.files(), &mut told);
        assert_eq!(told.0, [(vec![log.path().to_path_buf()], "s3a://bucket/logs/phalanx-d".to_string())]);
    }

    #[test]
    fn a_folder_that_is_not_there_is_not_made() {
        let work = phalanx_testkit::temp_dir("work");
        let log = RankLog::create(&work.path().join("rank-0.log"), 1 << 20).unwrap();
        let nowhere = work.path().join("not-mounted");
        keep(&nowhere.display().to_string(), "a", log.files(), &mut Told::default());
        assert!(!nowhere.exists(), "NODE-26");
    }
}
