//! What a rank's group is doing, for whoever wants to know why it hangs. Other threads can read it, and other processes
//! can read it from a small file.
//!
//! - GROUP-2 (whole-calls): a reader never sees parts of two different calls.
//! - GROUP-3 (never-delays): writing costs no system call (reading the clock is none). Readers can't delay the rank.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use phalanx_io::monotonic_ns;
use phalanx_types::{Error, ErrorKind, Result};

use crate::call::{CALL_WORDS, Call, Operation};
use crate::dtype::DType;
use crate::shm::MappedWords;
use crate::sync::{AtomicU64, Ordering, fence};

const MAGIC: u64 = u64::from_le_bytes(*b"PHXACT01");
/// A writer is done within nanoseconds; only one that was killed just then leaves what can't be read whole.
const READ_TRIES: u32 = 100_000;
const WORDS: usize = 8 + CALL_WORDS;

// The words of the record, which lie in the file in the machine's order.
const WORD_MAGIC: usize = 0;
/// Odd while the record is being written.
const WORD_VERSION: usize = 1;
const WORD_RANK: usize = 2;
const WORD_WORLD: usize = 3;
const WORD_SEQUENCE: usize = 4;
/// On the monotonic clock, which all processes of a host share and nobody sets.
const WORD_SINCE: usize = 5;
const WORD_RUNNING: usize = 6;
/// For how long operations that have ended ran, in nanoseconds.
const WORD_BUSY: usize = 7;
const WORD_CALL: usize = 8;

/// What a group was doing when it was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Activity {
    /// The rank that was looked at.
    pub rank: usize,
    /// How many ranks its group has.
    pub world_size: usize,
    /// How many operations have begun, the current one included.
    pub sequence: u64,
    /// The last operation that has begun; `None` before the first.
    pub operation: Option<Operation>,
    /// Its type of element, where it has one.
    pub dtype: Option<DType>,
    /// The bytes of its buffer.
    pub bytes: u64,
    /// Whether it is still running.
    pub is_running: bool,
    /// For how long it has been running, or not any more.
    pub age: Duration,
    /// For how long operations have run, all together, the running one included.
    pub busy: Duration,
    /// All of it in words: `all_reduce(sum, float32, 4096 bytes)`.
    pub call: String,
}

/// Reads the activity of a group in this process. Cheap to clone; outlives the group.
#[derive(Clone)]
pub struct ActivityReader(Arc<MappedWords<WORDS>>);

impl ActivityReader {
    /// What the group is doing now.
    pub fn read(&self) -> Activity {
        let record = self.0.get();
        let words = || record.each_ref().map(|word| word.load(Ordering::Relaxed));
        for _ in 0..READ_TRIES {
            let before = record[WORD_VERSION].load(Ordering::Acquire);
            let seen = words();
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && record[WORD_VERSION].load(Ordering::Relaxed) == before {
                return interpret(&seen);
            }
            std::hint::spin_loop();
        }
        interpret(&words())
    }
}

/// Reads the activity of a group in another process, from the file that its options name.
///
/// # Errors
/// `ErrorKind::Protocol` if the file is something else, `ErrorKind::Io` if it can't be read.
pub fn read_activity(path: &Path) -> Result<Activity> {
    let look = || -> std::io::Result<[u64; WORDS]> {
        let mut bytes = [0; WORDS * 8];
        File::open(path)?.read_exact(&mut bytes)?;
        let mut words = [0; WORDS];
        let pairs = words.iter_mut().zip(bytes.as_chunks::<8>().0);
        pairs.for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        Ok(words)
    };
    let look = || look().map_err(|error| Error::io(format_args!("read {}", path.display()), &error));
    let mut seen = look()?;
    if seen[WORD_MAGIC] != MAGIC {
        return Err(Error::new(
            ErrorKind::Protocol,
            format!("{} is not a record of activity", path.display()),
        ));
    }
    for _ in 0..READ_TRIES {
        // A read isn't atomic: only what is the same twice, at rest, is whole.
        let again = look()?;
        if again == seen && seen[WORD_VERSION].is_multiple_of(2) {
            break;
        }
        seen = again;
    }
    Ok(interpret(&seen))
}

fn interpret(words: &[u64; WORDS]) -> Activity {
    let call = Call::from_words(std::array::from_fn(|word| words[WORD_CALL + word]));
    let is_running = words[WORD_RUNNING] == 1;
    let age = Duration::from_nanos(monotonic_ns().saturating_sub(words[WORD_SINCE]));
    let ended = Duration::from_nanos(words[WORD_BUSY]);
    Activity {
        rank: words[WORD_RANK] as usize,
        world_size: words[WORD_WORLD] as usize,
        sequence: words[WORD_SEQUENCE],
        operation: call.operation(),
        dtype: call.dtype(),
        bytes: call.bytes(),
        is_running,
        age,
        busy: if is_running { ended.saturating_add(age) } else { ended },
        call: call.to_string(),
    }
}

/// The group's side.
pub(crate) struct ActivityLog(Arc<MappedWords<WORDS>>);

impl ActivityLog {
    pub(crate) fn new(path: Option<&Path>, rank: usize, world_size: usize) -> Result<ActivityLog> {
        let log = ActivityLog(Arc::new(MappedWords::new(path)?));
        let words = log.0.get();
        words[WORD_RANK].store(rank as u64, Ordering::Relaxed);
        words[WORD_WORLD].store(world_size as u64, Ordering::Relaxed);
        words[WORD_SINCE].store(monotonic_ns(), Ordering::Relaxed);
        words[WORD_MAGIC].store(MAGIC, Ordering::Release);
        Ok(log)
    }

    pub(crate) fn reader(&self) -> ActivityReader {
        ActivityReader(Arc::clone(&self.0))
    }

    pub(crate) fn begin(&self, sequence: u64, call: Call) {
        self.begin_at(monotonic_ns(), sequence, call);
    }

    pub(crate) fn end(&self) {
        self.end_at(monotonic_ns());
    }

    pub(crate) fn begin_at(&self, now: u64, sequence: u64, call: Call) {
        self.write(now, |words| {
            words[WORD_SEQUENCE].store(sequence, Ordering::Relaxed);
            words[WORD_RUNNING].store(1, Ordering::Relaxed);
            for (cell, word) in words[WORD_CALL..].iter().zip(call.words()) {
                cell.store(word, Ordering::Relaxed);
            }
        });
    }

    pub(crate) fn end_at(&self, now: u64) {
        self.write(now, |words| {
            // There is one writer: no operation needs to be atomic as a whole.
            if words[WORD_RUNNING].load(Ordering::Relaxed) == 1 {
                let ran = now.saturating_sub(words[WORD_SINCE].load(Ordering::Relaxed));
                words[WORD_BUSY].store(words[WORD_BUSY].load(Ordering::Relaxed) + ran, Ordering::Relaxed);
            }
            words[WORD_RUNNING].store(0, Ordering::Relaxed);
        });
    }

    fn write(&self, now: u64, change: impl FnOnce(&[AtomicU64; WORDS])) {
        let words = self.0.get();
        let version = words[WORD_VERSION].load(Ordering::Relaxed);
        words[WORD_VERSION].store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change(words);
        words[WORD_SINCE].store(now, Ordering::Relaxed);
        words[WORD_VERSION].store(version + 2, Ordering::Release);
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::ReduceOp;

    #[test]
    fn activity_is_seen_from_inside_and_through_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("activity");
        let log = ActivityLog::new(Some(&path), 3, 8).unwrap();
        let idle = read_activity(&path).unwrap();
        assert_eq!((idle.rank, idle.world_size, idle.sequence, idle.operation), (3, 8, 0, None));
        let call = Call::new(Operation::AllReduce).of_type(DType::F32).reducing(ReduceOp::Sum).of_bytes(64);
        log.begin(7, call);
        let busy = read_activity(&path).unwrap();
        assert_eq!(Activity { age: busy.age, busy: busy.busy, ..log.reader().read() }, busy);
        assert_eq!((busy.sequence, busy.operation, busy.bytes), (7, Some(Operation::AllReduce), 64));
        assert!(busy.is_running && busy.age < Duration::from_secs(60));
        assert_eq!((idle.busy, busy.busy), (Duration::ZERO, busy.age));
        log.end();
        let ended = read_activity(&path).unwrap();
        assert!(!ended.is_running && ended.busy >= busy.busy);
        log.end();
        assert_eq!(read_activity(&path).unwrap().busy, ended.busy);
        // Nobody else's business.
        use std::os::unix::fs::MetadataExt;
        assert_eq!(path.metadata().unwrap().mode() & 0o077, 0);
    }

    #[test]
    fn readers_never_see_two_calls_mixed() {
        // GROUP-2
        let log = ActivityLog::new(None, 0, 2).unwrap();
        let reader = log.reader();
        let looker = std::thread::spawn(move || {
            (0..5_000).all(|_| {
                let seen = reader.read();
                seen.bytes == seen.sequence * 3
            })
        });
        let mut sequence = 0;
        while !looker.is_finished() {
            sequence += 1;
            log.begin(sequence, Call::new(Operation::Broadcast).of_bytes(sequence as usize * 3));
            // As an operation would.
            (0..100).for_each(|_| std::hint::spin_loop());
        }
        assert!(looker.join().unwrap());
    }

    #[test]
    fn other_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("other");
        assert_eq!(read_activity(&path).unwrap_err().kind(), ErrorKind::Io);
        std::fs::write(&path, [b'x'; 200]).unwrap();
        assert_eq!(read_activity(&path).unwrap_err().kind(), ErrorKind::Protocol);
    }
}
