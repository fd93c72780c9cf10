//! One rank's output as a file, which is also the buffer of the live view. It is written as fast as the rank writes. A
//! reader that shows the output reads by offset, at its own speed.
//!
//! There are two segments of half the cap each: `rank-3.log` is written, and `rank-3.log.1` is the one before. Offsets
//! count the rank's bytes and nothing else (GUARD-12). Notices of what was dropped or lost stand in the files, for
//! people, and have no offsets. When the disk refuses bytes, they are lost and counted. The next bytes that it takes
//! follow a notice (GUARD-11).

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
    /// Held while the disk works, by the only thread that writes.
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
        let file =
            Arc::new(begin().map_err(|e| Error::io(format!("create the log {}", path.display()), &e))?);
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

    /// Its files, the one before first.
    pub fn files(&self) -> Vec<PathBuf> {
        [before(&self.path), self.path.clone()].into_iter().filter(|file| file.exists()).collect()
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
            let (file, reason) = (self.path.display(), &loss.reason);
            lines.push(notice(&match loss.bytes {
                0 => format!("some of this output is not in {file}: {reason}"),
                bytes => format!("{bytes} bytes of this output are not in {file}: {reason}"),
            }));
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

    /// The rank has written more: what is known of it without the disk.
    pub(crate) fn note(&self, bytes: &[u8]) {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count() as u64;
        let mut index = self.index();
        index.tail.push(bytes);
        index.lines += lines;
        index.last_output = Some(Instant::now());
    }

    /// Writes output to the disk, after which `lost` bytes are missing, and why.
    pub(crate) fn write_down(&self, bytes: &[u8], lost: u64, why: &io::Error) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.write_some(&mut writer, rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) => {
                    self.lose(&mut writer, rest.len() as u64, &error);
                    break;
                }
            }
        }
        if lost > 0 {
            self.lose(&mut writer, lost, why);
        }
    }

    /// There is no more output, and the disk hangs with what there was last.
    pub(crate) fn give_up(&self, why: &io::Error) {
        let mut index = self.index();
        index.loss.get_or_insert_with(|| Loss { bytes: 0, reason: why.to_string() });
        index.finished = true;
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
        // Without it the file is harder to read, and nothing else: a disk that hangs is not waited for.
        if let Ok(mut writer) = self.writer.try_lock() {
            let _ = writer.write_notice(&format!("{}\n", notice(text)));
        }
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

    fn lose(&self, writer: &mut Writer, bytes: u64, error: &io::Error) {
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
            let text = format!(
                "the first {dropped} bytes of this output were dropped, because its log is capped at {cap}"
            );
            // Not worth losing output for: that has its own way of telling.
            let _ = writer.write_notice(&format!("{}\n", notice(&text)));
        }
        Ok(())
    }

    /// For tests: the disk hangs for as long as this is held.
    #[cfg(test)]
    pub(crate) fn hang(&self) -> MutexGuard<'_, impl Sized> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For tests: notes and writes.
    #[cfg(test)]
    fn append(&self, bytes: &[u8]) {
        self.note(bytes);
        self.write_down(bytes, 0, &io::Error::other(""));
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
mod tests;
