//! What a rank has reported, in memory that its node has, too: the node's end. The rank's is
//! `python/phalanx/rank/report_memory.py`.
//!
//! A report costs a rank no system call, so it writes down each. Its node reads as many as it has use for, when it has
//! time, also when the rank has ended, however it did. The memory lies behind the rank's words (`rank_words.rs`), and
//! is 16 blocks of 64 KiB. The rank fills one after the other, and begins with the first again when all are full.
//!
//! | byte of a block | word | |
//! | --- | --- | --- |
//! | 0 | which of all blocks that were begun it is, from 1; 0 while it is begun | |
//! | 8 | the number of its first record: how many the rank had written before | |
//! | 16 | how many bytes of it, behind its header, have records | written after the record |
//! | 24 | zero | |
//! | 32 | records | |
//!
//! A record is a word, whose lower half is how many bytes follow and whose upper half is their CRC-32 (zlib's) behind
//! that of the record's number, eight bytes, little-endian; then the bytes, with zeros to the next multiple of eight.
//! They are the value of a [`report`](phalanx_types::contract::NOTE_REPORT) note.
//!
//! - GUARD-20 (newest-stay): a rank never waits for its reader. What it overwrites before it was read is missing from
//!   the numbers; the last that it wrote is always there.
//! - GUARD-21 (whole): a record that is being overwritten, is not whole or is no record is never taken for one. A
//!   program that writes anything there harms only its own reports.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use phalanx_types::contract::{REPORT_BLOCK_BYTES, REPORTS_BYTES, WORDS_BYTES};

use crate::sys::SharedWords;

/// Of the rank's words, the one that counts the blocks that it has begun.
const BEGUN: usize = 6;

// Which word of a block is what, and where its records begin.
const SEQUENCE: usize = 0;
const FIRST: usize = 1;
const USED: usize = 2;
const RECORDS: usize = 4;

const BLOCKS: u64 = (REPORTS_BYTES / REPORT_BLOCK_BYTES) as u64;
const BLOCK_WORDS: usize = REPORT_BLOCK_BYTES / 8;
const RECORDS_BYTES: usize = REPORT_BLOCK_BYTES - RECORDS * 8;

/// One report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportRecord {
    /// How many reports the rank had written before.
    pub number: u64,
    /// As the rank wrote it.
    pub bytes: Vec<u8>,
}

impl ReportRecord {
    /// How many bytes it has there.
    fn size(&self) -> usize {
        8 + self.bytes.len().next_multiple_of(8)
    }
}

/// Reads a rank's reports, each once.
#[derive(Debug)]
pub struct ReportReader {
    memory: SharedWords,
    /// In which block the next record is, of all that were begun, from 0.
    block: u64,
    /// Behind how many bytes of records.
    at: usize,
    /// Its number, unless it is the block's first.
    next: u64,
}

impl ReportReader {
    /// Those of the rank whose words `memfd` has.
    ///
    /// # Errors
    /// As the system's; `InvalidInput` where it is something else.
    pub(crate) fn of(memfd: impl AsFd) -> io::Result<ReportReader> {
        let memory = SharedWords::map(memfd, WORDS_BYTES + REPORTS_BYTES)?;
        Ok(ReportReader { memory, block: 0, at: 0, next: 0 })
    }

    /// Whether there is something that was not read. Costs a look at three words.
    pub fn has_more(&self) -> bool {
        self.newest_block()
            .is_some_and(|newest| newest > self.block || newest == self.block && self.used(newest) > self.at)
    }

    /// The next records, oldest first, until they take up more than `most` bytes: all that there are, if that is
    /// [`REPORTS_BYTES`].
    pub fn take(&mut self, most: usize) -> Vec<ReportRecord> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while bytes < most
            && let Some(record) = self.next_record()
        {
            bytes += record.size();
            taken.push(record);
        }
        taken
    }

    /// The newest record, unless it was read before. All older ones are passed over.
    pub fn take_newest(&mut self) -> Option<ReportRecord> {
        // One that has just been begun may have none.
        let before = self.newest_block()?.saturating_sub(1);
        if before > self.block {
            self.enter(before);
        }
        // Who writes on all the time is left at it.
        let (mut newest, mut bytes) = (None, 0);
        while bytes < 2 * REPORT_BLOCK_BYTES
            && let Some(record) = self.next_record()
        {
            bytes += record.size();
            newest = Some(record);
        }
        newest
    }

    /// A look at the newest record, unless it was read before. It is read later, with all older ones.
    pub fn newest(&mut self) -> Option<ReportRecord> {
        let (block, at, next) = (self.block, self.at, self.next);
        let newest = self.take_newest();
        (self.block, self.at, self.next) = (block, at, next);
        newest
    }

    fn next_record(&mut self) -> Option<ReportRecord> {
        // Looked at once: who begins blocks all the time is left at it.
        let newest = self.newest_block()?;
        if newest.checked_sub(self.block)? >= BLOCKS {
            // All but the one that the rank will begin next.
            self.enter(newest - (BLOCKS - 2));
        }
        while self.block < newest {
            // Who has begun another block writes no more in this one.
            match self.record_here() {
                Some(record) => return Some(record),
                None => self.enter(self.block + 1),
            }
        }
        self.record_here()
    }

    /// The record at this place, if there is a whole one.
    fn record_here(&mut self) -> Option<ReportRecord> {
        let used = self.used(self.block);
        let header = self.word(self.block, SEQUENCE).load(Ordering::Acquire);
        if header != self.block + 1 || self.at + 8 > used {
            return None;
        }
        let number = match self.at {
            0 => self.word(self.block, FIRST).load(Ordering::Relaxed),
            _ => self.next,
        };
        let word = self.word(self.block, RECORDS + self.at / 8).load(Ordering::Relaxed);
        let (crc, length) = ((word >> 32) as u32, (word & u64::from(u32::MAX)) as usize);
        let end = self.at + 8 + length.next_multiple_of(8);
        if end > used {
            return None;
        }
        let mut bytes = Vec::with_capacity(length.next_multiple_of(8));
        for at in (self.at / 8 + 1)..(end / 8) {
            let word = self.word(self.block, RECORDS + at).load(Ordering::Relaxed);
            bytes.extend(word.to_le_bytes());
        }
        bytes.truncate(length);
        if crc32(crc32(0, &number.to_le_bytes()), &bytes) != crc {
            return None;
        }
        // The rank may have begun another block here since, whose first record is whole, too.
        fence(Ordering::Acquire);
        if number < self.next || self.word(self.block, SEQUENCE).load(Ordering::Relaxed) != self.block + 1 {
            return None;
        }
        (self.at, self.next) = (end, number.wrapping_add(1));
        Some(ReportRecord { number, bytes })
    }

    fn enter(&mut self, block: u64) {
        (self.block, self.at) = (block, 0);
    }

    fn newest_block(&self) -> Option<u64> {
        self.memory.words()[BEGUN].load(Ordering::Acquire).checked_sub(1)
    }

    /// How many bytes of a block have records. The rank may write any number there.
    fn used(&self, block: u64) -> usize {
        let used = self.word(block, USED).load(Ordering::Acquire);
        usize::try_from(used).unwrap_or(usize::MAX).min(RECORDS_BYTES)
    }

    fn word(&self, block: u64, word: usize) -> &AtomicU64 {
        let slot = usize::try_from(block % BLOCKS).unwrap_or(0);
        &self.memory.words()[WORDS_BYTES / 8 + slot * BLOCK_WORDS + word]
    }
}

/// zlib's CRC-32 of these bytes behind those of which it is `of`.
fn crc32(of: u32, bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!of, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ (crc >> 8))
}

/// What each byte does to a CRC-32.
static TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut bit) = (byte as u32, 0);
        while bit < 8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg());
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use phalanx_types::Generation;
    use proptest::prelude::*;

    use super::*;
    use crate::rank_words::RankWords;

    /// A rank, as `report_memory.py` writes.
    struct Rank {
        reader: ReportReader,
        block: u64,
        at: usize,
        number: u64,
    }

    impl Rank {
        fn new() -> Rank {
            let (_, memory) = RankWords::create(Generation::first()).unwrap();
            Rank { reader: ReportReader::of(&memory).unwrap(), block: 0, at: RECORDS_BYTES, number: 0 }
        }

        fn set(&self, block: u64, word: usize, value: u64) {
            self.reader.word(block, word).store(value, Ordering::Release);
        }

        /// Writes a record of this length, which says its number.
        fn report(&mut self, length: usize) {
            let size = 8 + length.next_multiple_of(8);
            if self.at + size > RECORDS_BYTES {
                let begun = &self.reader.memory.words()[BEGUN];
                let next = begun.load(Ordering::Relaxed);
                self.set(next, SEQUENCE, 0);
                self.set(next, USED, 0);
                self.set(next, FIRST, self.number);
                self.set(next, SEQUENCE, next + 1);
                begun.store(next + 1, Ordering::Release);
                (self.block, self.at) = (next, 0);
            }
            let bytes = told(self.number, length);
            let crc = crc32(crc32(0, &self.number.to_le_bytes()), &bytes);
            self.set(self.block, RECORDS + self.at / 8, u64::from(crc) << 32 | length as u64);
            for (at, eight) in bytes.chunks(8).enumerate() {
                let mut word = [0; 8];
                word[..eight.len()].copy_from_slice(eight);
                self.set(self.block, RECORDS + self.at / 8 + 1 + at, u64::from_le_bytes(word));
            }
            self.at += size;
            self.number += 1;
            self.set(self.block, USED, self.at as u64);
        }
    }

    /// What tells readers apart.
    fn place(reader: &ReportReader) -> (u64, usize, u64) {
        (reader.block, reader.at, reader.next)
    }

    fn told(number: u64, length: usize) -> Vec<u8> {
        number.to_string().into_bytes().into_iter().cycle().take(length).collect()
    }

    fn numbers(taken: &[ReportRecord]) -> Vec<u64> {
        taken.iter().map(|record| record.number).collect()
    }

    #[test]
    fn a_checksum_is_zlibs() {
        assert_eq!(crc32(0, b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(crc32(0, b"1234"), b"56789"), 0xCBF4_3926);
    }

    #[test]
    fn a_flood_leaves_the_newest_and_the_numbers_tell_how_many_are_missing() {
        let mut rank = Rank::new();
        for _ in 0..200_000 {
            rank.report(92);
        }
        let taken = rank.reader.take(usize::MAX);
        let first = taken[0].number;
        assert!(numbers(&taken).into_iter().eq(first..200_000), "GUARD-20");
        let kept = taken.len() * 100;
        assert!((REPORTS_BYTES * 3 / 4..=REPORTS_BYTES).contains(&kept), "GUARD-20: {kept} bytes");
        assert!(!rank.reader.has_more());
        assert_eq!(rank.reader.take_newest(), None, "each once");
    }

    #[test]
    fn a_look_at_the_newest_leaves_all_to_be_read() {
        let mut rank = Rank::new();
        assert_eq!(rank.reader.newest(), None);
        for _ in 0..3000 {
            rank.report(92);
        }
        for _ in 0..2 {
            assert_eq!(rank.reader.newest().map(|record| record.number), Some(2999), "GUARD-20");
        }
        assert!(numbers(&rank.reader.take(104_000)).into_iter().eq(0..1000));
        assert_eq!(rank.reader.newest().map(|record| record.number), Some(2999));
        assert!(numbers(&rank.reader.take(usize::MAX)).into_iter().eq(1000..3000));
        assert_eq!(rank.reader.newest(), None, "it was read");
    }

    #[test]
    fn no_record_comes_after_a_later_one() {
        let mut rank = Rank::new();
        for _ in 0..20 {
            rank.report(10);
        }
        rank.reader.next = 15;
        assert_eq!(rank.reader.take(usize::MAX), [], "GUARD-21");
    }

    #[test]
    fn what_a_program_writes_there_that_is_no_record_is_none() {
        for word in [u64::MAX, 1, REPORT_BLOCK_BYTES as u64, 0xFFFF] {
            let mut rank = Rank::new();
            rank.report(10);
            rank.report(10);
            for index in [BEGUN, WORDS_BYTES / 8 + USED, WORDS_BYTES / 8 + RECORDS + 3] {
                let at = &rank.reader.memory.words()[index];
                let before = at.swap(word, Ordering::Relaxed);
                let mut reader = ReportReader { block: 0, at: 0, next: 0, memory: rank.reader.memory };
                let taken = reader.take(usize::MAX);
                assert!(numbers(&taken).into_iter().eq(0..taken.len() as u64), "GUARD-21: {word}");
                assert!(taken.iter().all(|record| record.bytes == told(record.number, 10)), "GUARD-21");
                reader.memory.words()[index].store(before, Ordering::Relaxed);
                rank.reader = reader;
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Reports(usize, usize),
        Take(usize),
        Newest,
        /// The rank is in the middle of a record that overwrites another.
        Tears,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (1..300_usize, 1..3000_usize).prop_map(|(count, length)| Step::Reports(count, length)),
            3 => (0..200_000_usize).prop_map(Step::Take),
            2 => Just(Step::Newest),
            1 => Just(Step::Tears),
        ];
        proptest::collection::vec(step, 1..30)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn whoever_reads_when_gets_whole_reports_in_order_and_the_last(steps in steps()) {
            let mut rank = Rank::new();
            let (mut next, mut unread) = (0, 0);
            let mut heard = |record: &ReportRecord, may_miss: bool| {
                assert!(record.number >= next, "in order, each once");
                assert!(may_miss || record.number == next, "GUARD-20: {} after {next}", record.number);
                assert_eq!(record.bytes, told(record.number, record.bytes.len()), "GUARD-21");
                next = record.number + 1;
            };
            for step in steps {
                match step {
                    Step::Reports(count, length) => {
                        for _ in 0..count {
                            rank.report(length);
                        }
                        unread += count * (length + 16);
                    }
                    Step::Take(most) => {
                        let taken = rank.reader.take(most);
                        for record in &taken {
                            // Each block may have had no room for one more.
                            heard(record, unread > REPORTS_BYTES / 2);
                        }
                        if !rank.reader.has_more() {
                            unread = 0;
                        }
                    }
                    Step::Newest => {
                        let before = place(&rank.reader);
                        let seen = rank.reader.newest();
                        prop_assert_eq!(place(&rank.reader), before);
                        let taken = rank.reader.take_newest();
                        prop_assert_eq!(&taken, &seen);
                        if let Some(record) = taken {
                            prop_assert_eq!(record.number + 1, rank.number, "GUARD-20");
                            heard(&record, true);
                        }
                        prop_assert!(!rank.reader.has_more());
                        unread = 0;
                    }
                    Step::Tears => {
                        // It has begun to write where its oldest block is, and is killed; `USED` says nothing of it.
                        if rank.at + 16 <= RECORDS_BYTES {
                            rank.set(rank.block, RECORDS + rank.at / 8, u64::MAX / 3);
                        }
                    }
                }
            }
            rank.report(100);
            let taken = rank.reader.take(usize::MAX);
            prop_assert_eq!(taken.last().map(|record| record.number + 1), Some(rank.number), "GUARD-20");
        }
    }
}
