//! The files in which the ranks' results wait for the caller.
//!
//! - DRIVER-11 (whole-or-absent): a result is at its path only when it has arrived whole.
//! - DRIVER-12 (own-file): what one upload brings is never mixed with what another does, and what doesn't arrive whole
//!   leaves nothing.
//! - DRIVER-13 (last-attempt): only results of the present attempt are found. Each attempt has files of its own, so
//!   that none has to be removed before another begins.

use std::io::{self, Write};
use std::path::PathBuf;

use phalanx_rendezvous::{Arriving, Opening};
use phalanx_types::{Error, Result};
use tempfile::NamedTempFile;

use crate::driver::present::Present;

/// A folder of results.
#[derive(Debug, Clone)]
pub(super) struct Results {
    folder: PathBuf,
    present: Present,
}

impl Results {
    /// Those of the present attempt count.
    pub(super) fn in_folder(folder: PathBuf, present: Present) -> Results {
        Results { folder, present }
    }

    /// Where a rank's result is once it is whole.
    fn whole(&self, rank: u32) -> PathBuf {
        self.folder.join(format!("attempt-{}-rank-{rank}", self.present.attempt()))
    }

    /// The file with what a rank left, if it has arrived whole.
    pub(super) fn path(&self, rank: u32) -> Option<PathBuf> {
        let path = self.whole(rank);
        path.exists().then_some(path)
    }

    /// Opens the file of a result that begins to arrive, where it is to be opened.
    pub(super) fn opening(&self, rank: u32) -> Opening {
        let (results, whole) = (self.clone(), self.whole(rank));
        Box::new(move || {
            if whole.exists() {
                return Ok(None);
            }
            Ok(Some(Box::new(results.begin(rank, whole)?)))
        })
    }

    /// An empty file for a result that begins to arrive.
    fn begin(&self, rank: u32, whole: PathBuf) -> Result<Arrival> {
        tempfile::Builder::new()
            .prefix(&format!("rank-{rank}."))
            .suffix(".part")
            .tempfile_in(&self.folder)
            .map(|part| Arrival { part, whole })
            .map_err(|e| Error::io(format!("store the result of rank {rank}"), &e))
    }
}

/// A result that arrives, in a file that goes with this value until it is kept.
#[derive(Debug)]
pub(super) struct Arrival {
    part: NamedTempFile,
    whole: PathBuf,
}

impl Write for Arrival {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.part.flush()
    }
}

impl Arriving for Arrival {
    #[allow(clippy::disallowed_methods, reason = "a result is too long to be written at once")]
    fn keep(self: Box<Self>) -> Result<()> {
        self.part.persist(&self.whole).map(drop).map_err(|e| Error::io("name its file", &e.error))
    }
}

#[cfg(test)]
mod tests {
    use phalanx_types::{Attempt, Generation};

    use super::*;

    fn names(folder: &std::path::Path) -> Vec<std::ffi::OsString> {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }

    fn empty() -> (tempfile::TempDir, Results) {
        let dir = phalanx_testkit::temp_dir("results");
        let results = Results::in_folder(dir.path().to_path_buf(), Present::first());
        (dir, results)
    }

    #[test]
    fn a_result_is_there_when_it_is_whole() {
        let (dir, results) = empty();
        let mut arrival = Box::new(results.begin(3, results.whole(3)).unwrap());
        arrival.write_all(b"half").unwrap();
        assert_eq!(results.path(3), None, "DRIVER-11");
        arrival.keep().unwrap();
        assert_eq!(std::fs::read(results.path(3).unwrap()).unwrap(), b"half");
        Box::new(results.begin(4, results.whole(4)).unwrap()).keep().unwrap();
        drop(results.begin(4, results.whole(4)).unwrap());
        assert!(results.path(4).is_some(), "DRIVER-11: what has arrived stays");
        assert_eq!(names(dir.path()).len(), 2, "DRIVER-12");
        assert!(results.opening(4)().unwrap().is_none(), "DRIVER-12");
        results.present.begin(Attempt::first().next(), Generation::first().next());
        assert_eq!((results.path(4), results.path(0)), (None, None), "DRIVER-13");
        assert!(results.opening(4)().unwrap().is_some(), "DRIVER-13");
    }

    #[test]
    fn results_that_arrive_at_the_same_time_are_not_mixed() {
        let (_dir, results) = empty();
        let mut older = Box::new(results.begin(0, results.whole(0)).unwrap());
        older.write_all(b"old").unwrap();
        let mut newer = Box::new(results.begin(0, results.whole(0)).unwrap());
        newer.write_all(b"new").unwrap();
        older.keep().unwrap();
        newer.write_all(b"er").unwrap();
        assert_eq!(std::fs::read(results.path(0).unwrap()).unwrap(), b"old", "DRIVER-12");
        newer.keep().unwrap();
        assert_eq!(std::fs::read(results.path(0).unwrap()).unwrap(), b"newer", "DRIVER-12");
    }
}
