//! A rank's notices, in memory that its node has, too: the node's end. The rank's is `python/phalanx/rank/notices.py`.
//!
//! Each is a line of JSON, a [`RankNotice`], behind the one before. A word says how many bytes of them there are
//! (`rank_words.rs`), so what lies before is whole. A rank finds there what it is to be told at a step when it asks for
//! that step, whatever its other threads do.
//!
//! - GUARD-23 (bounded): what there is no room for is left out, in every rank the same, and later ones as well.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use phalanx_types::RankNotice;
use phalanx_types::contract::{NOTICES_BYTES, REPORTS_BYTES, WORDS_BYTES};

use crate::rank_words::RankWords;

/// Where they begin.
const AT: u64 = (WORDS_BYTES + REPORTS_BYTES) as u64;

/// Writes a rank's notices, each once.
#[derive(Debug)]
pub(crate) struct NoticeWriter {
    memory: OwnedFd,
    /// How many bytes of them there are.
    end: usize,
    /// The number of the last.
    last: Option<u32>,
    is_full: bool,
}

impl NoticeWriter {
    /// Those of the rank whose words `memfd` has.
    ///
    /// # Errors
    /// If the system gives no descriptor.
    pub(crate) fn of(memfd: impl AsFd) -> io::Result<NoticeWriter> {
        let memory = memfd.as_fd().try_clone_to_owned()?;
        Ok(NoticeWriter { memory, end: 0, last: None, is_full: false })
    }

    /// Tells the rank of a notice, unless it was told before. The last step that it has begun though it was frozen.
    pub(crate) fn write(&mut self, notice: &RankNotice, words: &RankWords) -> Option<u64> {
        if self.last.is_none_or(|last| last < notice.number) {
            self.last = Some(notice.number);
            if let Err(why) = self.append(notice) {
                log::warn!("a rank isn't told that {} are to go: {why}", notice.hosts.join(", "));
            }
        }
        words.tell(self.end as u64)
    }

    fn append(&mut self, notice: &RankNotice) -> io::Result<()> {
        let mut line = serde_json::to_vec(notice)?;
        line.push(b'\n');
        self.is_full |= self.end + line.len() > NOTICES_BYTES;
        if self.is_full {
            return Err(io::Error::other("there were too many before")); // GUARD-23
        }
        let mut written = 0;
        while written < line.len() {
            let at = AT + (self.end + written) as u64;
            written += rustix::io::pwrite(&self.memory, &line[written..], at)?;
        }
        self.end += line.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use phalanx_types::Generation;

    use super::*;

    fn notice(number: u32, step: u64) -> RankNotice {
        let (hosts, ranks) = (vec!["far".into()], vec![1, 2]);
        RankNotice { number, step, hosts, ranks, deadline_ms: Some(7), reason: "spot".into() }
    }

    fn read(memory: &OwnedFd, bytes: usize) -> Vec<RankNotice> {
        let mut text = vec![0; bytes];
        assert_eq!(rustix::io::pread(memory, &mut text, AT).unwrap(), bytes);
        text.split_inclusive(|byte| *byte == b'\n')
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    #[test]
    fn a_rank_finds_each_notice_once_and_as_much_as_there_is_room_for() {
        let (words, memory) = RankWords::create(Generation::new(7)).unwrap();
        let mut writer = NoticeWriter::of(&memory).unwrap();
        for (number, step) in [(3, 40), (3, 40), (4, 90)] {
            assert_eq!(writer.write(&notice(number, step), &words), None);
        }
        assert_eq!(read(&memory, writer.end), [notice(3, 40), notice(4, 90)]);
        let told = words.go_on(95);
        assert_eq!(told, writer.end as u64);
        assert_eq!(writer.write(&notice(4, 90), &words), Some(95), "GUARD-22");
        for number in 5..10_000 {
            writer.write(&notice(number, u64::from(number)), &words);
        }
        let all = read(&memory, writer.end);
        assert!(NOTICES_BYTES - writer.end < 200, "GUARD-23: {} bytes", writer.end);
        assert!(all.is_sorted_by_key(|notice| notice.number) && all.len() > 1000, "GUARD-23");
    }
}
