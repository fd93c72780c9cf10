//! What a node and a rank of its tell each other without a message: words in memory that both have.
//!
//! The first packet that a rank finds in its socket has the memory's descriptor with it (`SCM_RIGHTS`); its kind is
//! `words`. They are the first 4,096 bytes of a memfd. Behind them are the rank's reports (`report_reader.rs`), and
//! then its notices (`notice_writer.rs`). Words have 64 bits, little-endian, and lie at multiples of eight, so a plain
//! load or store of one is whole on every machine that we run on. Whoever has the descriptor reads them, in any
//! language, without the rank's help: also while it is stopped, and after its end.
//!
//! | byte | word | written by |
//! | --- | --- | --- |
//! | 0 | version: 1 | the node, before the rank starts |
//! | 8 | generation | the node, before the rank starts |
//! | 16 | the last step that the rank asked for; all ones where there is none | the rank |
//! | 24 | the last step that it reported; all ones where there is none | the rank |
//! | 32 | frozen: 1 while the rank may begin no step, else 0 | the node |
//! | 40 | how many bytes of notices there are | the node |
//! | 48 | how many blocks of its reports it has begun: 0 where there is none | the rank |
//! | 56 | the last step that it has begun though it was frozen; all ones where there is none | the rank |
//! | 64 | zeros, of later versions | |
//!
//! - GUARD-18 (layout): the words are those of the table. A program that knows none of them is not disturbed.
//! - GUARD-19 (sealed): the memory's size never changes, so neither end can make an access of the other's fault.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use phalanx_types::contract::{NOTICES_BYTES, REPORTS_BYTES, WORDS_BYTES, WORDS_FORMAT};
use phalanx_types::{Error, ErrorKind, Generation, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::freeze;
use crate::sys::SharedWords;

// Where each word is, of those of the page.
const VERSION: usize = 0;
const GENERATION: usize = 1;
const ASKED: usize = 2;
const REPORTED: usize = 3;
const FROZEN: usize = 4;
const NOTICES: usize = 5;
const LATE: usize = 7;

/// Of a step that there is none of.
const NONE: u64 = u64::MAX;

/// The words of a rank, at one end. The memory goes with the last who has it.
#[derive(Debug)]
pub struct RankWords(SharedWords);

impl RankWords {
    /// The words of a rank that is to start, and the descriptor for it.
    ///
    /// # Errors
    /// If the system gives no memory or no descriptor.
    pub fn create(generation: Generation) -> io::Result<(RankWords, OwnedFd)> {
        let fd = memfd_create("phalanx-rank-words", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // The kernel has pages for it only where something was written.
        rustix::fs::ftruncate(&fd, (WORDS_BYTES + REPORTS_BYTES + NOTICES_BYTES) as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let words = RankWords(SharedWords::map(&fd, WORDS_BYTES)?);
        for (at, value) in [(GENERATION, generation.number()), (ASKED, NONE), (REPORTED, NONE), (LATE, NONE)]
        {
            words.at(at).store(value, Ordering::Relaxed);
        }
        words.at(VERSION).store(WORDS_FORMAT, Ordering::Release);
        Ok((words, fd))
    }

    /// Those in a file, such as `/proc/self/fd/7`.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if it can't be opened or mapped, [`ErrorKind::Protocol`] if it is something else.
    pub fn open(path: &Path) -> Result<RankWords> {
        let failed =
            |error: io::Error| Error::io(format!("map the words of a rank at {}", path.display()), &error);
        let file: File = OpenOptions::new().read(true).write(true).open(path).map_err(failed)?;
        let words = RankWords(SharedWords::map(&file, WORDS_BYTES).map_err(failed)?);
        let version = words.at(VERSION).load(Ordering::Acquire);
        if version != WORDS_FORMAT {
            let why =
                format!("words of version {version}, of {WORDS_FORMAT} expected, at {}", path.display());
            return Err(Error::new(ErrorKind::Protocol, why));
        }
        Ok(words)
    }

    /// Which generation the rank is of.
    pub fn generation(&self) -> Generation {
        Generation::new(self.at(GENERATION).load(Ordering::Relaxed))
    }

    /// The last step that the rank reported.
    pub fn reported(&self) -> Option<u64> {
        step(self.at(REPORTED).load(Ordering::Acquire))
    }

    /// Reports a step, as the rank.
    pub fn report(&self, step: u64) {
        self.at(REPORTED).store(step, Ordering::Release);
    }

    /// Asks for a step, as the rank; whether it may begin it now. Never waits (GUARD-3, GUARD-4).
    pub fn ask(&self, step: u64) -> bool {
        freeze::ask(self.at(ASKED), self.at(FROZEN), step)
    }

    /// From now on the rank begins no step (GUARD-3). The last that it asked for, which it may have begun.
    pub fn freeze(&self) -> Option<u64> {
        step(freeze::freeze(self.at(ASKED), self.at(FROZEN)))
    }

    /// The rank may begin steps again. It has to ask for them anew.
    pub fn thaw(&self) {
        freeze::thaw(self.at(FROZEN));
    }

    /// Begins this step though it is frozen, as the rank that has waited long enough (GUARD-22). How many bytes of
    /// notices there are.
    pub fn go_on(&self, step: u64) -> u64 {
        freeze::go_on(self.at(LATE), self.at(NOTICES), step)
    }

    /// Says that there are so many bytes of notices. The last step that the rank has begun though it was frozen
    /// (GUARD-22).
    pub(crate) fn tell(&self, notices: u64) -> Option<u64> {
        step(freeze::tell(self.at(NOTICES), self.at(LATE), notices))
    }

    fn at(&self, word: usize) -> &AtomicU64 {
        &self.0.words()[word]
    }
}

fn step(word: u64) -> Option<u64> {
    (word != NONE).then_some(word)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::path::PathBuf;

    use rustix::fs::ftruncate;
    use rustix::io::pread;

    use super::*;

    pub(super) fn path_of(fd: &OwnedFd) -> PathBuf {
        format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
    }

    #[test]
    fn whoever_has_the_descriptor_reads_the_words_of_the_table() {
        let (node, fd) = RankWords::create(Generation::new(7)).unwrap();
        let read = || {
            let mut bytes = [0; WORDS_BYTES];
            assert_eq!(pread(&fd, &mut bytes, 0).unwrap(), bytes.len());
            let words = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
            words.collect::<Vec<_>>()
        };
        assert_eq!(read()[..8], [1, 7, NONE, NONE, 0, 0, 0, NONE], "GUARD-18");
        assert!(read()[8..].iter().all(|word| *word == 0), "GUARD-18");
        let rank = RankWords::open(&path_of(&fd)).unwrap();
        assert_eq!((rank.generation(), node.reported()), (Generation::new(7), None));
        rank.report(120);
        assert_eq!((node.reported(), read()[3]), (Some(120), 120), "GUARD-18");
        assert_eq!(rank.go_on(121), 0);
        assert_eq!((node.tell(99), read()[5], read()[7]), (Some(121), 99, 121), "GUARD-18");
        drop((rank, node));
        assert_eq!(read()[3], 120, "also when both ends have gone");
    }

    #[test]
    fn a_rank_that_is_frozen_is_let_begin_no_step_until_it_is_thawed() {
        let (node, fd) = RankWords::create(Generation::new(7)).unwrap();
        let rank = RankWords::open(&path_of(&fd)).unwrap();
        assert!(rank.ask(4));
        assert_eq!(node.freeze(), Some(4), "GUARD-3");
        assert!(!rank.ask(5), "GUARD-3, GUARD-4");
        assert_eq!(node.freeze(), Some(5), "it may be frozen twice");
        node.thaw();
        assert!(rank.ask(5));
        let (fresh, _fd) = RankWords::create(Generation::new(8)).unwrap();
        assert_eq!(fresh.freeze(), None, "before its first step");
    }

    /// On real processors, where a store waits in a buffer. The model has all that is allowed.
    #[test]
    fn two_threads_that_freeze_and_ask_at_once_agree() {
        let (node, fd) = RankWords::create(Generation::new(7)).unwrap();
        let rank = RankWords::open(&path_of(&fd)).unwrap();
        let meet = std::sync::Barrier::new(2);
        std::thread::scope(|threads| {
            let asks = threads.spawn(|| {
                let begin = |round| {
                    meet.wait();
                    let begun = rank.ask(round);
                    meet.wait();
                    begun
                };
                (0..20_000).map(begin).collect::<Vec<_>>()
            });
            let freeze = |round| {
                meet.wait();
                let known = node.freeze();
                meet.wait();
                node.thaw();
                known == Some(round)
            };
            let known: Vec<_> = (0..20_000).map(freeze).collect();
            let begun = asks.join().unwrap();
            assert!(begun.iter().zip(&known).all(|(begun, known)| !begun || *known), "GUARD-3");
        });
    }

    #[test]
    fn what_is_not_sealed_or_something_else_is_refused_and_nobody_can_cut_it_short() {
        let (_node, fd) = RankWords::create(Generation::new(7)).unwrap();
        for bytes in [0, 1, 2 << 20] {
            assert!(ftruncate(&fd, bytes).is_err(), "GUARD-19");
        }
        let folder = phalanx_testkit::temp_dir("words");
        let file = folder.path().join("file");
        std::fs::write(&file, vec![0; WORDS_BYTES]).unwrap();
        assert!(RankWords::open(&file).is_err(), "GUARD-19: no memory that is sealed");
        assert!(RankWords::open(Path::new("/nowhere")).is_err());
        let other = memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&other, WORDS_BYTES as u64).unwrap();
        fcntl_add_seals(&other, SealFlags::SHRINK).unwrap();
        assert_eq!(
            RankWords::open(&path_of(&other)).unwrap_err().kind(),
            ErrorKind::Protocol,
            "another version"
        );
    }
}
