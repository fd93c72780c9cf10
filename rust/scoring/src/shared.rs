//! The memory of a batch, which both ends map.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create};

use crate::batch::{Batch, NewColumn};

/// What memory is made for that needs so many bytes: batches differ, and new memory is paid for in page faults.
pub(crate) fn capacity_for(bytes: u64) -> u64 {
    const LEAST: u64 = 64 << 10;
    bytes.checked_next_power_of_two().unwrap_or(bytes).max(LEAST)
}

/// Memory without a name, which ends with the last process that has it, and never shrinks (SCORE-3, SCORE-6).
#[derive(Debug)]
pub struct SharedMemory {
    file: OwnedFd,
    bytes: u64,
}

impl SharedMemory {
    /// New memory of so many bytes, all of them 0.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the system has none.
    pub fn new(bytes: u64) -> Result<SharedMemory> {
        let made = memfd_create("phalanx-batch", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .and_then(|file| ftruncate(&file, bytes).map(|()| file))
            .and_then(|file| fcntl_add_seals(&file, SealFlags::SHRINK).map(|()| file));
        let file = made
            .map_err(|error| Error::io(format!("make {bytes} bytes of memory for a batch"), &error.into()))?;
        Ok(SharedMemory { file, bytes })
    }

    /// Memory that the other end made.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] if it is a file of another sort, or could shrink while it is read.
    pub fn received(file: OwnedFd) -> Result<SharedMemory> {
        let seals = fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        let size = fstat(&file).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
        match size {
            Some(bytes) if seals.contains(SealFlags::SHRINK) => Ok(SharedMemory { file, bytes }),
            _ => Err(Error::new(ErrorKind::Protocol, "the memory of a batch could shrink while it is read")),
        }
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The file alone.
    pub(crate) fn into_file(self) -> OwnedFd {
        self.file
    }

    /// The file, to be mapped.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The memory of one of a task's batches under way, at the end that writes it.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    memory: Option<SharedMemory>,
    /// Whether the other end has it.
    told: bool,
    batch: Option<Batch>,
}

/// Where the columns of a batch are to be written.
#[derive(Debug)]
pub struct Room {
    /// The memory, to be mapped.
    pub file: OwnedFd,
    /// How many bytes it has.
    pub bytes: u64,
    /// Whether it is other memory than before in this slot.
    pub is_new: bool,
    /// Where each column begins.
    pub at: Vec<u64>,
}

impl Slot {
    /// Makes room for a batch.
    pub(crate) fn lay_out(
        &mut self,
        slot: u32,
        rows: u64,
        columns: Vec<NewColumn>,
        asked: String,
    ) -> Result<Room> {
        let (batch, end) = Batch::laid_out(slot, rows, columns, asked)?;
        let is_new = self.memory.as_ref().is_none_or(|memory| memory.bytes() < end);
        if is_new {
            self.memory = None; // not both at the same time
            self.told = false;
        }
        let memory = match self.memory.take() {
            Some(memory) => memory,
            None => SharedMemory::new(capacity_for(end))?,
        };
        let file = memory.file().try_clone_to_owned().map_err(|error| Error::io("keep a batch", &error))?;
        let room = Room {
            file,
            bytes: memory.bytes(),
            is_new,
            at: batch.columns.iter().map(|column| column.at).collect(),
        };
        (self.memory, self.batch) = (Some(memory), Some(batch));
        Ok(room)
    }

    /// What is to be sent of it: the batch, and the memory where the other end has another.
    pub(crate) fn to_send(&self) -> Option<(Batch, Option<BorrowedFd<'_>>)> {
        let file = self.memory.as_ref().filter(|_| !self.told).map(SharedMemory::file);
        Some((self.batch.clone()?, file))
    }

    /// The batch that was laid out last.
    pub(crate) fn batch(&self) -> Option<&Batch> {
        self.batch.as_ref()
    }

    /// The other end has its memory, or, where it is another process now, hasn't.
    pub(crate) fn told(&mut self, told: bool) {
        self.told = told;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_its_size_and_a_file_that_could_shrink_is_refused() {
        let memory = SharedMemory::new(capacity_for(1)).unwrap();
        assert_eq!(memory.bytes(), 64 << 10);
        assert!(ftruncate(memory.file(), 1).is_err(), "SCORE-6");
        let same = SharedMemory::received(memory.file().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(same.bytes(), memory.bytes());
        let other = memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        assert_eq!(SharedMemory::received(other).unwrap_err().kind(), ErrorKind::Protocol);
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(SharedMemory::received(null.into()).unwrap_err().kind(), ErrorKind::Protocol);
    }
}
