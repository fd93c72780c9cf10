//! The memory that the ranks of a host share. Most of the crate's unsafe code is here; the rest is in
//! [`nontemporal`], `kernels/dispatch.rs` and `kernels/float16_sums.rs`.
//!
//! This file owns the mapping and the rules by which it is read and written.
//!
//! - GROUP-73 (nameless): the memory has no name, and forked children don't have it. When the last rank that maps it
//!   has ended, by whatever signal, nothing is left.
//! - GROUP-74 (sealed): its size never changes (it is sealed), so a peer can't make an access fault.
//! - GROUP-75 (slot-ownership): a slot is written only while no other rank may read it, and read only after its owner
//!   published it. Both are checked here, at every access, so that the rest of the crate can be safe code.

pub(crate) mod nontemporal;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};
use phalanx_types::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::call::Call;
use crate::failure::FailureRecord;
use crate::flag::Flag;
use crate::forks::{Opening, Private};
use crate::shm::nontemporal::SlotWriter;

/// A type that may lie in shared memory: atomics only, for which zeros are a valid value.
///
/// # Safety
/// The implementor guarantees it, and is `#[repr(C)]`.
unsafe trait Shareable {}
// SAFETY: atomics only, `repr(C)`.
unsafe impl Shareable for Flag {}
// SAFETY: atomics only, `repr(C)`.
unsafe impl Shareable for FailureRecord {}
// SAFETY: atomics only, `repr(C)`.
unsafe impl Shareable for RankRecord {}
// SAFETY: atomics only, `repr(C)`.
unsafe impl Shareable for RingEnds {}

/// So many words in memory of their own, in a file where others are to see them.
pub(crate) struct MappedWords<const WORDS: usize> {
    map: MmapRaw,
}

impl<const WORDS: usize> MappedWords<WORDS> {
    const BYTES: usize = WORDS * size_of::<AtomicU64>();

    /// All zeros. A file is made anew, readable by its owner only, and stays when this ends.
    pub(crate) fn new(path: Option<&Path>) -> Result<MappedWords<WORDS>> {
        let failed = |error: io::Error| Error::io("map a record", &error);
        // GROUP-31: a disk may hang. What a child has of such a file hides nothing.
        let _opening = path.is_none().then(Opening::begin);
        let file = match path {
            Some(path) => {
                let mut options = OpenOptions::new();
                options.read(true).write(true).create(true).truncate(true).mode(0o600);
                options.open(path).map_err(failed)?
            }
            None => {
                let fd = memfd_create("phalanx-record", MemfdFlags::CLOEXEC);
                File::from(fd.map_err(|errno| failed(errno.into()))?)
            }
        };
        file.set_len(Self::BYTES as u64).map_err(failed)?;
        let map = MmapOptions::new().len(Self::BYTES).map_raw(&file).map_err(failed)?;
        Ok(MappedWords { map })
    }

    pub(crate) fn get(&self) -> &[AtomicU64; WORDS] {
        // SAFETY: atomics only; the mapping has just this size and begins with a page. Someone with this user's rights
        // could cut the file short, as they could end the process.
        unsafe { &*self.map.as_ptr().cast::<[AtomicU64; WORDS]>() }
    }
}

/// What a rank tells the others besides its steps.
#[repr(C, align(128))]
pub(crate) struct RankRecord {
    /// Raised whenever a message for this rank arrives, or one of its messages was taken.
    pub(crate) doorbell: Flag,
    /// 1 once the rank has left in good order.
    pub(crate) left: AtomicU32,
}

/// Where a ring's writer and reader are; both only grow.
#[repr(C)]
struct RingEnds {
    written: Line,
    read: Line,
}

/// Each end in a line of the cache of its own (two, as neighbours are fetched together).
#[repr(C, align(128))]
struct Line(AtomicU64);

const PAGE: usize = 4096;
const HEADER_BYTES: usize = PAGE;
/// A rank's flag and its record.
const CONTROL_BYTES: usize = 512;
const FLAG_STRIDE: usize = 128;
/// In one slot, writes to its multiples are trials of the [`SlotWriter`]: pieces begin there, and what follows on them.
const TRIALS_APART: usize = 64 << 10;
const RING_ENDS_BYTES: usize = size_of::<RingEnds>();

/// Where everything lies. Only pages that are touched take memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) ranks: usize,
    /// Slots a rank, used in turn: a power of two, so that counting on beyond the largest step goes on in turn.
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
    pub(crate) ring_bytes: usize,
}

impl Layout {
    fn control(&self, rank: usize) -> usize {
        HEADER_BYTES + rank * CONTROL_BYTES
    }

    fn slot(&self, rank: usize, number: usize) -> usize {
        let first = (HEADER_BYTES + self.ranks * CONTROL_BYTES).next_multiple_of(PAGE);
        first + (rank * self.slots + number) * self.slot_bytes
    }

    fn ring(&self, from: usize, to: usize) -> usize {
        let stride = (RING_ENDS_BYTES + self.ring_bytes).next_multiple_of(PAGE);
        self.slot(self.ranks, 0) + (from * self.ranks + to) * stride
    }

    fn bytes(&self) -> usize {
        self.ring(self.ranks, 0)
    }
}

/// A mapping of memory that several processes share.
pub(crate) struct Segment {
    map: MmapRaw,
    layout: Layout,
}

impl Segment {
    /// New memory, all zeros, and the descriptor by which others can map it.
    pub(crate) fn create(layout: Layout) -> Result<(Segment, Private<OwnedFd>)> {
        assert!(layout.slots >= 2 && layout.slots.is_power_of_two(), "GROUP-28 needs two");
        let failed = |error: io::Error| Error::io("make shared memory", &error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = {
            let opening = Opening::begin();
            memfd_create("phalanx-collective", flags).map(|fd| opening.private(fd))
        };
        let fd = fd.map_err(|errno| failed(errno.into()))?;
        ftruncate(&fd, layout.bytes() as u64).map_err(|errno| failed(errno.into()))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(|errno| failed(errno.into()))?;
        Ok((Segment::open(&fd, layout)?, fd))
    }

    /// Maps memory that another rank made.
    pub(crate) fn open(fd: &OwnedFd, layout: Layout) -> Result<Segment> {
        let failed = |error: io::Error| Error::io("map shared memory", &error);
        let size = fstat(fd).map_err(|errno| failed(errno.into()))?.st_size;
        let seals = fcntl_get_seals(fd).map_err(|errno| failed(errno.into()))?;
        if size as usize != layout.bytes() || !seals.contains(SealFlags::SHRINK) {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("shared memory of {size} bytes, of {} expected, or not sealed", layout.bytes()),
            ));
        }
        // GROUP-73, whoever of the ranks has forked, and whenever.
        let _opening = Opening::begin();
        let map = MmapOptions::new().len(layout.bytes()).map_raw(fd).map_err(failed)?;
        map.advise(Advice::DontFork).map_err(failed)?;
        Ok(Segment { map, layout })
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    fn at<T: Shareable>(&self, offset: usize) -> &T {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + size_of::<T>() <= self.map.len());
        // SAFETY: in bounds and aligned (the mapping is aligned to a page); the memory lives as long as `self` and
        // can't shrink (GROUP-74). `Shareable` types are valid for any bytes that atomic stores leave, starting at
        // zeros.
        unsafe { &*self.map.as_ptr().add(offset).cast::<T>() }
    }

    pub(crate) fn flag(&self, rank: usize) -> &Flag {
        self.at(self.layout.control(rank))
    }

    pub(crate) fn rank_record(&self, local_rank: usize) -> &RankRecord {
        self.at(self.layout.control(local_rank) + FLAG_STRIDE)
    }

    pub(crate) fn failure(&self) -> &FailureRecord {
        self.at(0)
    }

    /// The bytes of a slot, as a pointer: whoever makes a slice of it answers for GROUP-75.
    fn slot(&self, rank: usize, step: u32) -> *mut u8 {
        assert!(rank < self.layout.ranks);
        // SAFETY: `Segment::open` checked that the memory has all of the layout's bytes.
        unsafe { self.map.as_mut_ptr().add(self.layout.slot(rank, step as usize % self.layout.slots)) }
    }
}

/// One rank's part in the steps of its host: in each, every rank fills its slot, publishes it, and reads the others'.
pub(crate) struct Steps {
    segment: Arc<Segment>,
    me: usize,
    step: u32,
    /// Whether every other rank was seen to have published `step`.
    is_together: bool,
    writer: SlotWriter,
}

impl Steps {
    /// To be made once a rank: GROUP-75 holds within one.
    pub(crate) fn new(segment: Arc<Segment>, me: usize) -> Steps {
        assert!(me < segment.layout.ranks);
        Steps { segment, me, step: 0, is_together: true, writer: SlotWriter::default() }
    }

    pub(crate) fn ranks(&self) -> usize {
        self.segment.layout.ranks
    }

    pub(crate) fn me(&self) -> usize {
        self.me
    }

    pub(crate) fn slot_bytes(&self) -> usize {
        self.segment.layout.slot_bytes
    }

    /// Writes into the slot that the next step publishes. Nothing else in it is needed.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.is_together, "GROUP-75: others may still read the slot");
        let step = self.step.wrapping_add(1);
        let slot = self.segment.slot(self.me, step);
        // SAFETY: within the mapping. Nobody else writes this rank's slots; others read this one from the step in
        // which it was published, the last but one or before, until they publish the next, which we saw them all do
        // (GROUP-28). The slice ends here, before the slot is published.
        let slot = unsafe { std::slice::from_raw_parts_mut(slot, self.segment.layout.slot_bytes) };
        // At one of the slots all writes to these places are trials, and no others are.
        let is_trial =
            (step as usize).is_multiple_of(self.segment.layout.slots) && at.is_multiple_of(TRIALS_APART);
        self.writer.copy(&mut slot[at..][..bytes.len()], bytes, is_trial);
    }

    /// Publishes this rank's slot, and says what call it begins, if it begins one.
    /// Whether the others have to be woken.
    pub(crate) fn publish(&mut self, begins: Option<Call>) -> bool {
        self.is_together = false;
        self.step = self.step.wrapping_add(1);
        let flag = self.segment.flag(self.me);
        if let Some(call) = begins {
            flag.announce(self.step, call);
        }
        flag.publish(self.step)
    }

    /// The step published last.
    pub(crate) fn step(&self) -> u32 {
        self.step
    }

    pub(crate) fn flag(&self, rank: usize) -> &Flag {
        self.segment.flag(rank)
    }

    /// Looks whether all have published this step; then their slots can be read. The first that has not, if not.
    #[inline]
    pub(crate) fn missing(&mut self) -> Option<usize> {
        let (me, step) = (self.me, self.step);
        let missing = (0..self.ranks()).find(|rank| *rank != me && !self.segment.flag(*rank).reached(step));
        self.is_together = missing.is_none();
        missing
    }

    /// What a rank published in this step.
    pub(crate) fn theirs(&self, rank: usize) -> &[u8] {
        assert!(self.is_together, "GROUP-75: the slot isn't published yet");
        let slot = self.segment.slot(rank, self.step);
        // SAFETY: within the mapping. Its owner published it in this step, which we saw with acquire ordering
        // (GROUP-26), and writes it again only after it saw us publish the next step. That needs `&mut self`, so this
        // borrow has ended by then.
        unsafe { std::slice::from_raw_parts(slot, self.segment.layout.slot_bytes) }
    }
}

/// A stream of bytes from one rank to another.
pub(crate) struct Ring {
    segment: Arc<Segment>,
    offset: usize,
}

impl Ring {
    pub(crate) fn new(segment: Arc<Segment>, from: usize, to: usize) -> Ring {
        assert!(from < segment.layout.ranks && to < segment.layout.ranks);
        Ring { offset: segment.layout.ring(from, to), segment }
    }

    /// Appends as much as there is room for; how much that was. Only the sender may call it.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let ends: &RingEnds = self.segment.at(self.offset);
        let capacity = self.segment.layout.ring_bytes;
        let written = ends.written.0.load(Ordering::Relaxed);
        let used = written.wrapping_sub(ends.read.0.load(Ordering::Acquire)) as usize;
        let count = bytes.len().min(capacity.saturating_sub(used));
        let at = (written % capacity as u64) as usize;
        let first = count.min(capacity - at);
        let data = self.data();
        // SAFETY: at + first and count - first are at most the capacity, which the mapping holds. The reader touches
        // only bytes between `read` and `written`, which these are not.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.add(at), first);
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), data, count - first);
        }
        ends.written.0.store(written.wrapping_add(count as u64), Ordering::Release);
        count
    }

    /// Takes as much as there is and fits; how much that was. Only the receiver may call it.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> usize {
        let ends: &RingEnds = self.segment.at(self.offset);
        let capacity = self.segment.layout.ring_bytes;
        let read = ends.read.0.load(Ordering::Relaxed);
        let available = ends.written.0.load(Ordering::Acquire).wrapping_sub(read) as usize;
        let count = bytes.len().min(available.min(capacity));
        let at = (read % capacity as u64) as usize;
        let first = count.min(capacity - at);
        let data = self.data();
        // SAFETY: as above; the writer touches only bytes that are not between `read` and `written`, and what is
        // there was written before `written` was (acquire).
        unsafe {
            std::ptr::copy_nonoverlapping(data.add(at), bytes.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(data, bytes.as_mut_ptr().add(first), count - first);
        }
        ends.read.0.store(read.wrapping_add(count as u64), Ordering::Release);
        count
    }

    fn data(&self) -> *mut u8 {
        // SAFETY: the ring's ends and data are part of the layout, which the mapping holds.
        unsafe { self.segment.map.as_mut_ptr().add(self.offset + RING_ENDS_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { ranks: 3, slots: 4, slot_bytes: PAGE, ring_bytes: 10 };

    fn pair() -> (Arc<Segment>, Arc<Segment>) {
        let (one, fd) = Segment::create(LAYOUT).unwrap();
        (Arc::new(one), Arc::new(Segment::open(&fd, LAYOUT).unwrap()))
    }

    #[test]
    fn parts_of_the_layout_do_not_overlap() {
        let starts = [
            LAYOUT.control(0),
            LAYOUT.control(2) + CONTROL_BYTES,
            LAYOUT.slot(0, 0),
            LAYOUT.slot(2, 3) + LAYOUT.slot_bytes,
            LAYOUT.ring(0, 0),
            LAYOUT.ring(2, 2) + RING_ENDS_BYTES + LAYOUT.ring_bytes,
            LAYOUT.bytes() + 1,
        ];
        assert!(starts.is_sorted(), "{starts:?}");
        assert!(size_of::<FailureRecord>() <= HEADER_BYTES);
        assert!(FLAG_STRIDE + size_of::<RankRecord>() <= CONTROL_BYTES && size_of::<Flag>() <= FLAG_STRIDE);
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        // GROUP-74
        let (_, fd) = Segment::create(LAYOUT).unwrap();
        let error = Segment::open(&fd, Layout { ranks: 4, ..LAYOUT }).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(ftruncate(&fd, 1).is_err(), "sealed");
    }

    #[test]
    #[should_panic(expected = "GROUP-75")]
    fn a_slot_that_was_not_published_can_not_be_read() {
        let (one, _) = pair();
        let mut steps = Steps::new(one, 0);
        let _ = steps.publish(None);
        assert_eq!(steps.missing(), Some(1));
        steps.theirs(1);
    }

    #[test]
    #[should_panic(expected = "GROUP-75")]
    fn a_slot_that_others_may_read_can_not_be_written() {
        let (one, _) = pair();
        let mut steps = Steps::new(one, 0);
        let _ = steps.publish(None);
        steps.write(0, &[1]);
    }

    #[test]
    fn a_ring_carries_bytes_in_order_around_its_end() {
        let (one, two) = pair();
        let (mut sender, mut receiver) = (Ring::new(one, 1, 2), Ring::new(two, 1, 2));
        assert_eq!(receiver.read(&mut [0; 4]), 0);
        let (mut sent, mut received) = (0u8, 0u8);
        for round in 0..50 {
            let bytes: Vec<u8> = (0..round % 13).map(|i| sent.wrapping_add(i)).collect();
            sent = sent.wrapping_add(sender.write(&bytes) as u8);
            let mut taken = [0; 7];
            let count = receiver.read(&mut taken);
            for byte in &taken[..count] {
                assert_eq!(*byte, received);
                received = received.wrapping_add(1);
            }
        }
        assert!(received > 100 && sent.wrapping_sub(received) <= 10);
        assert_eq!(
            sender.write(&[0; 20]) + usize::from(sent - received),
            10,
            "no more than there is room for"
        );
    }
}
