//! The store by which the ranks of a group find one another, before they are connected.
//!
//! The torch backend uses the c10d store. Others may write to it, so what ranks leave there is sealed. Outside a job it
//! hands out the group's secret, too: there whoever can read it can join.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_io::{pause, write_whole};
use phalanx_types::{Deadline, Error, ErrorKind, Result};

/// How long a directory is not looked at again: an eighth of how long it was waited for, within these.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(50);

/// A table of keys and values that all ranks of a group see. Keys are written once.
pub trait Store {
    /// Gives a key its value.
    fn set(&mut self, key: &str, value: &[u8], deadline: Deadline) -> Result<()>;

    /// The value of a key, once it has one.
    ///
    /// # Errors
    /// `ErrorKind::Timeout` at the deadline.
    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>>;
}

/// A store among the threads of a process, as gloo's of the same name.
#[derive(Debug, Clone, Default)]
pub struct HashStore(Arc<(Mutex<Table>, Condvar)>);

type Table = HashMap<String, Vec<u8>>;

impl Store for HashStore {
    fn set(&mut self, key: &str, value: &[u8], _deadline: Deadline) -> Result<()> {
        let (values, changed) = &*self.0;
        values.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), value.to_owned());
        changed.notify_all();
        Ok(())
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let (values, changed) = &*self.0;
        let mut values = values.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(value) = values.get(key) {
                return Ok(value.clone());
            }
            let left = deadline.left().unwrap_or(Duration::from_secs(3600));
            if left.is_zero() {
                return Err(missing(key));
            }
            values = changed.wait_timeout(values, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A store in a directory that all ranks see, as gloo's of the same name: for tests and benchmarks.
#[derive(Debug, Clone)]
pub struct FileStore(PathBuf);

impl FileStore {
    /// The directory exists, and only the ranks can read it.
    pub fn new(directory: impl Into<PathBuf>) -> FileStore {
        FileStore(directory.into())
    }

    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key.replace('/', "."))
    }
}

impl Store for FileStore {
    fn set(&mut self, key: &str, value: &[u8], _deadline: Deadline) -> Result<()> {
        write_whole(&self.path(key), value)
    }

    fn get(&mut self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        let (path, start) = (self.path(key), Instant::now());
        loop {
            match read(&path) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) if deadline.passed() => return Err(missing(key)),
                // Many ranks that look often leave no processor to those that they wait for.
                Ok(None) => pause((start.elapsed() / 8).clamp(FIRST_PAUSE, LAST_PAUSE), deadline),
                Err(error) => return Err(error),
            }
        }
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(format_args!("read {}", path.display()), &error)),
    }
}

fn missing(key: &str) -> Error {
    Error::new(ErrorKind::Timeout, format!("no rank has set {key} by the deadline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits_for_values(mut one: impl Store + Clone + Send + 'static) {
        let long = Deadline::after(Duration::from_secs(30));
        let mut other = one.clone();
        let reader = std::thread::spawn(move || other.get("g/a", long));
        one.set("g/a", b"value", long).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), b"value");
        let error = one.get("g/b", Deadline::after(Duration::from_millis(3))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout);
        assert!(error.to_string().contains("g/b"));
    }

    #[test]
    fn a_value_reaches_those_who_wait_for_it() {
        waits_for_values(HashStore::default());
    }

    #[test]
    #[cfg_attr(miri, ignore = "uses files")]
    fn ranks_that_set_similar_keys_at_once_do_not_disturb_one_another() {
        let directory = tempfile::tempdir().unwrap();
        let long = Deadline::after(Duration::from_secs(30));
        std::thread::scope(|scope| {
            for rank in 0..8 {
                let mut store = FileStore::new(directory.path());
                scope.spawn(move || {
                    for round in 0..50 {
                        store.set(&format!("g/card{round}/{rank}"), &[rank], long).unwrap();
                        store.get(&format!("g/card{round}/{}", 7 - rank), long).unwrap();
                    }
                });
            }
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "uses files")]
    fn a_value_reaches_those_who_wait_for_it_through_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        waits_for_values(FileStore::new(directory.path()));
    }
}
