//! A rank's log, read by offset as it grows, by somebody who may be slow.
//!
//! NODE-25 (skips-say-so): a notice stands in the place of what is not read, because it is kept no longer, could not
//! be written, or is too far behind the end. While a disk takes nothing, the notice comes every [`TELL_LOSS_EVERY`] at
//! most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_supervisor::{RankLog, ReadAt};
use phalanx_types::Result;

/// Where a reader goes on after a skip: this much before the end.
pub(crate) const RESUME_BYTES: u64 = 64 << 10;
/// How often it is said that a full disk takes no output.
const TELL_LOSS_EVERY: Duration = Duration::from_secs(5);

/// A log, and how far it has been read.
pub(crate) struct FollowedLog {
    pub(crate) rank: u32,
    pub(crate) log: Arc<RankLog>,
    /// The offset of the next byte to read.
    pub(crate) position: u64,
}

/// What comes next.
pub(crate) enum Next {
    /// Nothing at the moment.
    Nothing,
    /// This many bytes, which begin at this offset.
    Bytes { offset: u64, length: usize },
    /// Not what follows, for the reason in the notice; then it goes on at this offset.
    Skip { resume_at: u64, notice: String },
}

impl FollowedLog {
    /// From the log's beginning.
    pub(crate) fn new(rank: u32, log: Arc<RankLog>) -> FollowedLog {
        FollowedLog { rank, log, position: 0 }
    }

    /// Reads on into `chunk`. `told_loss` is when the reader was last told of a full disk, about whichever rank.
    pub(crate) fn next(
        &mut self,
        now: Instant,
        max_lag_bytes: u64,
        finishing: bool,
        told_loss: &mut Option<Instant>,
        chunk: &mut [u8],
    ) -> Result<Next> {
        let (log, position, end) = (&self.log, self.position, self.log.end());
        let (resume_at, notice) = match log.read_at(position, chunk)? {
            ReadAt::Dropped { lost: true, resume_at } => {
                let is_news = told_loss.is_none_or(|at| now >= at + TELL_LOSS_EVERY);
                if resume_at >= end && !is_news && !finishing {
                    return Ok(Next::Nothing);
                }
                *told_loss = Some(now);
                let why = log.loss().map_or_else(String::new, |loss| loss.reason);
                (resume_at, format!("{} bytes of output could not be written: {why}", resume_at - position))
            }
            ReadAt::Dropped { lost: false, resume_at } => {
                (resume_at, format!("{} bytes of output are no longer kept", resume_at - position))
            }
            ReadAt::Bytes(_) if end - position.min(end) > max_lag_bytes => {
                let (resume_at, file) = (end - RESUME_BYTES.min(max_lag_bytes), log.path().display());
                let bytes = resume_at - position;
                (
                    resume_at,
                    format!("{bytes} bytes skipped here, since the reader is behind; they are in {file}"),
                )
            }
            ReadAt::Bytes(0) => return Ok(Next::Nothing),
            ReadAt::Bytes(length) => {
                self.position += length as u64;
                return Ok(Next::Bytes { offset: position, length });
            }
        };
        self.position = resume_at;
        Ok(Next::Skip { resume_at, notice: format!("[phalanx] {notice}") })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::io::Write;

    use super::*;

    /// Has the log take what a rank wrote.
    pub(crate) fn write_to(log: &Arc<RankLog>, text: &[u8]) {
        let (output, mut rank) = std::io::pipe().unwrap();
        let reader = phalanx_supervisor::pump(output.into(), Arc::clone(log), Box::new(|| {})).unwrap();
        rank.write_all(text).unwrap();
        drop(rank);
        reader.join();
    }

    #[test]
    fn a_disk_that_takes_nothing_is_told_of_every_five_seconds_at_most() {
        let folder = phalanx_testkit::temp_dir("lost");
        let log = RankLog::create(&folder.path().join("rank.log"), 4096).unwrap();
        folder.close().unwrap();
        // The open segment takes its half of the cap; no other can be begun.
        write_to(&log, &[b'x'; 3000]);
        let mut followed = FollowedLog { position: 2048, ..FollowedLog::new(0, Arc::clone(&log)) };
        let (began, mut told_loss, mut chunk) = (Instant::now(), None, [0; 64]);
        let mut lines = Vec::new();
        for tenths in 0..=100 {
            let now = began + Duration::from_millis(100 * tenths);
            match followed.next(now, u64::MAX, false, &mut told_loss, &mut chunk).unwrap() {
                Next::Skip { notice, .. } => lines.push((tenths, notice)),
                Next::Nothing => {}
                Next::Bytes { .. } => panic!("nothing can be read"),
            }
            write_to(&log, &[b'x'; 1000]);
        }
        let told: Vec<_> =
            lines.iter().map(|(tenths, text)| (*tenths, text.split(':').next().unwrap())).collect();
        let line = |bytes| format!("[phalanx] {bytes} bytes of output could not be written");
        let expected = [(0, line(952)), (50, line(50_000)), (100, line(50_000))];
        assert_eq!(told, expected.each_ref().map(|(tenths, text)| (*tenths, text.as_str())), "NODE-25");
    }
}
