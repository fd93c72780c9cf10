//! One rank's output as a file, which is also the buffer of the live view: the pump writes at the speed of the rank,
//! whoever shows the output reads by offset at his own.
//!
//! Two segments of half the cap each: `rank-3.log` is written, `rank-3.log.1` is the one before. Offsets count the
//! rank's bytes and nothing else (SUP-8): notices of what was dropped or lost stand in the files, for people, and have
//! no offsets. When the disk refuses, bytes are lost, counted, and the next that it takes follow a notice (SUP-7).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use phalanx_types::{Error, Result};

use crate::segments::{Place, Segments};
use crate::tail::Tail;

/// Smaller caps count as this: a segment must hold its notices and something between them.
const MIN_CAP_BYTES: u64 = 4096;

/// What [`RankLog::read_at`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAt {
    /// This many bytes were read. None: there are no more yet, or no more at all if the log is finished.
    Bytes(usize),
    /// The bytes there are kept no longer, or never could be: go on at `resume_at`.
    Dropped {
        /// The offset of the next byte that can be read.
        resume_at: u64,
        /// Whether they never could be written; [`RankLog::loss`] says why.
        lost: bool,
    },
}

/// Output that could not be written down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// How many bytes.
    pub bytes: u64,
    /// What the system said, last.
    pub reason: String,
}

/// One rank's output.
#[derive(Debug)]
pub struct RankLog {
    path: PathBuf,
    segment_bytes: u64,
    /// Held while the disk works; the pump is the only one to write, so nobody waits for it.
    writer: Mutex<Writer>,
    /// Held for moments.
    index: Mutex<Index>,
}

#[derive(Debug)]
struct Writer {
    file: Arc<File>,
    /// How long the current file is, notices included.
    file_bytes: u64,
    /// How many bytes were lost since the last that were written.
    gap: u64,
}

#[derive(Debug)]
struct Index {
    segments: Segments,
    loss: Option<Loss>,
    tail: Tail,
    last_output: Option<Instant>,
    lines: u64,
    finished: bool,
}

impl RankLog {
    /// Begins an empty log at `path`, readable by the owner only, in place of what an earlier attempt left there. It
    /// takes at most `max_bytes` of disk, in two files.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the file can't be made.
    pub fn create(path: &Path, max_bytes: u64) -> Result<Arc<RankLog>> {
        let begin = || {
            remove(&before(path))?;
            remove(path)?;
            new_file(path)
        };
        let file = Arc::new(begin().map_err(|e| Error::io(format!("begin the log {}", path.display()), &e))?);
        Ok(Arc::new(RankLog {
            path: path.to_path_buf(),
            segment_bytes: max_bytes.max(MIN_CAP_BYTES) / 2,
            index: Mutex::new(Index {
                segments: Segments::new(Arc::clone(&file)),
                loss: None,
                tail: Tail::default(),
                last_output: None,
                lines: 0,
                finished: false,
            }),
            writer: Mutex::new(Writer { file, file_bytes: 0, gap: 0 }),
        }))
    }

    /// The current file. The one before has `.1` appended to its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes the rank has written so far.
    pub fn end(&self) -> u64 {
        self.index().segments.end()
    }

    /// How many lines the rank has ended so far.
    pub fn lines(&self) -> u64 {
        self.index().lines
    }

    /// Whether there will be no more.
    pub fn finished(&self) -> bool {
        self.index().finished
    }

    /// When the rank last wrote.
    pub fn last_output(&self) -> Option<Instant> {
        self.index().last_output
    }

    /// What could not be written to the disk, if anything.
    pub fn loss(&self) -> Option<Loss> {
        self.index().loss.clone()
    }

    /// The last `n` lines, at most [`phalanx_types::failure::LAST_LINES`], oldest first, as text; kept in memory. A
    /// line of its own tells of lost output.
    pub fn last_lines(&self, n: usize) -> Vec<String> {
        let index = self.index();
        let mut lines = index.tail.last(n);
        if let Some(loss) = &index.loss {
            lines.push(notice(&format!(
                "{} bytes of this output are not in {}: {}",
                loss.bytes,
                self.path.display(),
                loss.reason
            )));
        }
        lines
    }

    /// Reads the rank's bytes from `offset` on into `buffer`; fewer than it takes at the seams of the files.
    ///
    /// # Errors
    /// [`phalanx_types::ErrorKind::Io`] if the disk refuses.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadAt> {
        if buffer.is_empty() {
            return Ok(ReadAt::Bytes(0));
        }
        let (file, at, length) = match self.index().segments.find(offset) {
            Place::NotYet => return Ok(ReadAt::Bytes(0)),
            Place::Missing { resume_at, lost } => return Ok(ReadAt::Dropped { resume_at, lost }),
            Place::File { file, at, length } => (file, at, length),
        };
        // Without the lock: files only grow, and a dropped one lasts as long as it is open.
        let want = usize::try_from(length).map_or(buffer.len(), |length| length.min(buffer.len()));
        let read = file
            .read_at(&mut buffer[..want], at)
            .map_err(|error| Error::io(format!("read the log {}", self.path.display()), &error))?;
        // None there: somebody cut the file short.
        if read == 0 {
            return Ok(ReadAt::Dropped { resume_at: offset + length, lost: false });
        }
        Ok(ReadAt::Bytes(read))
    }

    /// Takes more of the rank's output.
    pub(crate) fn append(&self, bytes: &[u8]) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        {
            let mut index = self.index();
            index.tail.push(bytes);
            index.lines += lines;
            index.last_output = Some(Instant::now());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.write_some(&mut writer, rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) => {
                    self.lose(&mut writer, rest.len(), &error);
                    return;
                }
            }
        }
    }

    /// There will be no more.
    pub(crate) fn finish(&self) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // If even the notice of a loss doesn't fit, `loss` still tells.
        let _ = self.write_gap_notice(&mut writer);
        drop(writer);
        self.index().finished = true;
    }

    /// Goes on after an end, with a notice in the file: the rank starts again. Its last lines begin anew.
    pub fn resume(&self, text: &str) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        // Without it the file is harder to read, and nothing else.
        let _ = writer.write_notice(&format!("{}\n", notice(text)));
        let mut index = self.index();
        index.tail = Tail::default();
        index.finished = false;
    }

    fn write_some(&self, writer: &mut Writer, bytes: &[u8]) -> io::Result<usize> {
        self.write_gap_notice(writer)?;
        if writer.file_bytes >= self.segment_bytes || self.index().segments.is_crowded() {
            self.rotate(writer)?;
        }
        let room = usize::try_from(self.segment_bytes - writer.file_bytes).unwrap_or(usize::MAX);
        let bytes = &bytes[..bytes.len().min(room)];
        let written = retry(|| writer.file.write_at(bytes, writer.file_bytes))?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let length = u64::try_from(written).unwrap_or(0);
        self.index().segments.written(writer.file_bytes, length);
        writer.file_bytes += length;
        Ok(written)
    }

    fn lose(&self, writer: &mut Writer, bytes: usize, error: &io::Error) {
        let bytes = u64::try_from(bytes).unwrap_or(0);
        writer.gap += bytes;
        let mut index = self.index();
        index.segments.lost(bytes);
        let before = index.loss.as_ref().map_or(0, |loss| loss.bytes);
        index.loss = Some(Loss { bytes: before + bytes, reason: error.to_string() });
    }

    fn write_gap_notice(&self, writer: &mut Writer) -> io::Result<()> {
        if writer.gap > 0 {
            let text = format!("\n{}\n", notice(&format!("{} bytes of output were lost here", writer.gap)));
            writer.write_notice(&text)?;
            writer.gap = 0;
        }
        Ok(())
    }

    /// Makes the current file the one before, and begins a new one.
    fn rotate(&self, writer: &mut Writer) -> io::Result<()> {
        let coming = with_suffix(&self.path, ".new");
        remove(&coming)?;
        let file = Arc::new(new_file(&coming)?);
        let renamed = match fs::rename(&self.path, before(&self.path)) {
            // A rotation that got this far and no further, or somebody who tidied up.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::rename(&coming, &self.path),
        };
        if let Err(error) = renamed {
            let _ = remove(&coming);
            return Err(error);
        }
        let dropped = self.index().segments.begin(Arc::clone(&file));
        (writer.file, writer.file_bytes) = (file, 0);
        if dropped > 0 {
            let cap = self.segment_bytes * 2;
            let text =
                format!("the first {dropped} bytes of this output were dropped, its log is capped at {cap}");
            // Not worth losing output for: that has its own way of telling.
            let _ = writer.write_notice(&format!("{}\n", notice(&text)));
        }
        Ok(())
    }

    fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    /// All or nothing, as far as the index is concerned: what follows overwrites a notice that was cut short.
    fn write_notice(&mut self, text: &str) -> io::Result<()> {
        self.file.write_all_at(text.as_bytes(), self.file_bytes)?;
        self.file_bytes += u64::try_from(text.len()).unwrap_or(0);
        Ok(())
    }
}

fn notice(text: &str) -> String {
    format!("[phalanx: {text}]")
}

fn retry(mut write: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match write() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

fn before(path: &Path) -> PathBuf {
    with_suffix(path, ".1")
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// New, so that no link that somebody laid there is followed.
fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    /// The byte that stands at `offset` in every rank's output here.
    fn byte(offset: u64) -> u8 {
        (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
    }

    fn bytes(from: u64, to: u64) -> Vec<u8> {
        (from..to).map(byte).collect()
    }

    fn log(max_bytes: u64) -> (tempfile::TempDir, Arc<RankLog>) {
        let directory = tempfile::tempdir().unwrap();
        let log = RankLog::create(&directory.path().join("rank-3.log"), max_bytes).unwrap();
        (directory, log)
    }

    /// Reads from `offset` to the end, checks every byte, and returns which offsets could be read.
    fn check(log: &RankLog, mut offset: u64, buffer: &mut [u8]) -> Vec<std::ops::Range<u64>> {
        let mut ranges = Vec::new();
        let mut start = offset;
        loop {
            match log.read_at(offset, buffer).unwrap() {
                ReadAt::Bytes(0) => {
                    assert_eq!(offset, log.end());
                    ranges.push(start..offset);
                    ranges.retain(|range| !range.is_empty());
                    return ranges;
                }
                ReadAt::Bytes(n) => {
                    let to = offset + n as u64;
                    assert!(buffer[..n] == bytes(offset, to), "SUP-8: the bytes from {offset} to {to}");
                    offset = to;
                }
                ReadAt::Dropped { resume_at, .. } => {
                    assert!(resume_at > offset);
                    ranges.push(start..offset);
                    (start, offset) = (resume_at, resume_at);
                }
            }
        }
    }

    #[test]
    fn a_log_is_its_owner_s_alone_and_replaces_an_older_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rank-0.log");
        for name in ["rank-0.log", "rank-0.log.1"] {
            fs::write(directory.path().join(name), "old").unwrap();
        }
        let log = RankLog::create(&path, 1 << 20).unwrap();
        assert_eq!(fs::metadata(log.path()).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert!(RankLog::create(&directory.path().join("no/such.log"), 1).is_err());
    }

    #[test]
    fn a_segment_that_follows_dropped_ones_says_so_in_its_first_line() {
        let (directory, log) = log(4096);
        log.append(&bytes(0, 6000));
        let readable = check(&log, 0, &mut [0; 100]);
        assert!(readable.len() == 1 && readable[0] == (2048..6000), "{readable:?}");
        let current = fs::read(log.path()).unwrap();
        assert!(current.starts_with(
            b"[phalanx: the first 2048 bytes of this output were dropped, its log is capped at 4096]\n"
        ));
        assert_eq!(fs::read(directory.path().join("rank-3.log.1")).unwrap(), bytes(2048, 4096));
    }

    #[test]
    fn what_a_full_disk_takes_no_more_is_counted_and_the_rest_follows_a_notice() {
        let (_directory, log) = log(1 << 20);
        log.append(&bytes(0, 100));
        let full = Arc::new(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let disk = std::mem::replace(&mut log.writer.lock().unwrap().file, full);
        log.append(&bytes(100, 150));
        log.append(&bytes(150, 200));
        let loss = log.loss().unwrap();
        assert!(loss.bytes == 100 && loss.reason.contains("No space left"), "{loss:?}");
        assert_eq!(log.read_at(120, &mut [0; 9]).unwrap(), ReadAt::Dropped { resume_at: 200, lost: true });
        log.writer.lock().unwrap().file = disk;
        log.append(&bytes(200, 300));
        log.finish();
        assert_eq!(check(&log, 0, &mut [0; 64]), [0..100, 200..300], "SUP-8");
        let file = fs::read(log.path()).unwrap();
        let notice = b"\n[phalanx: 100 bytes of output were lost here]\n";
        assert_eq!(file, [&bytes(0, 100)[..], notice, &bytes(200, 300)].concat());
        assert!(
            log.last_lines(20).last().unwrap().starts_with("[phalanx: 100 bytes of this output are not in ")
        );
    }

    #[test]
    fn a_log_that_somebody_cut_short_is_read_as_dropped() {
        let (_directory, log) = log(1 << 20);
        log.append(&bytes(0, 1000));
        OpenOptions::new().write(true).open(log.path()).unwrap().set_len(10).unwrap();
        assert_eq!(log.read_at(500, &mut [0; 9]).unwrap(), ReadAt::Dropped { resume_at: 1000, lost: false });
        assert_eq!(log.read_at(1000, &mut [0; 9]).unwrap(), ReadAt::Bytes(0));
    }

    proptest! {
        #[test]
        fn rotation_at_the_cap_keeps_logical_offsets_right(
            pieces in prop::collection::vec((1u64..3000, prop::bool::weighted(0.1)), 1..40),
            cap in 0u64..20_000,
            buffer in 1usize..5000,
            from in 0u64..40_000,
        ) {
            let (directory, log) = log(cap);
            let cap = cap.max(MIN_CAP_BYTES);
            let mut lost = 0;
            for (length, fails) in pieces {
                let (start, end) = (log.end(), log.end() + length);
                if fails {
                    let full = Arc::new(OpenOptions::new().write(true).open("/dev/full").unwrap());
                    let disk = std::mem::replace(&mut log.writer.lock().unwrap().file, full);
                    log.append(&bytes(start, end));
                    // A rotation brings a new file, which takes bytes again.
                    let mut writer = log.writer.lock().unwrap();
                    if writer.gap > 0 && writer.file_bytes < log.segment_bytes {
                        writer.file = disk;
                    }
                    drop(writer);
                } else {
                    log.append(&bytes(start, end));
                }
                lost = log.loss().map_or(0, |loss| loss.bytes);
                prop_assert_eq!(log.end(), end);
            }
            let readable = check(&log, from.min(log.end()), &mut vec![0; buffer]);
            prop_assert!(readable.iter().all(|range| range.start >= from.min(log.end())));
            let all: u64 = check(&log, 0, &mut vec![0; buffer]).iter().map(|range| range.end - range.start).sum();
            let notices = 400;
            prop_assert!(all + lost >= log.end().min(cap / 2 - notices), "at least a segment is kept");
            let on_disk: u64 = fs::read_dir(directory.path()).unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum();
            prop_assert!(on_disk <= cap + 2 * notices, "{} on disk, capped at {}", on_disk, cap);
        }
    }
}
