//! A few bytes of memory by which two ranks find out whether they can share any, and how a descriptor is handed over.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

use phalanx_io::send_with_descriptors;
use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::SendFlags;

use crate::door::handshake::random;
use crate::door::timed::receive_descriptors;
use crate::forks::{Opening, Private};

type Nonce = [u8; 16];

/// This rank's probe: a random number, then a slot for each rank's.
pub(crate) struct Probe {
    file: Private<File>,
    nonce: Nonce,
}

impl Probe {
    pub(crate) fn new(ranks: usize) -> Result<Probe> {
        let failed = |error: std::io::Error| Error::io("make a memory probe", &error);
        let file = {
            let opening = Opening::begin();
            memfd_create("phalanx-probe", MemfdFlags::CLOEXEC).map(|fd| opening.private(File::from(fd)))
        };
        let file = file.map_err(|errno| failed(errno.into()))?;
        ftruncate(&file, slot_offset(ranks)).map_err(|errno| failed(errno.into()))?;
        let nonce = random()?;
        file.write_all_at(&nonce, 0).map_err(failed)?;
        Ok(Probe { file, nonce })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Whether `rank` left this number here.
    pub(crate) fn holds(&self, rank: usize, number: &Nonce) -> Result<bool> {
        let mut there = [0; 16];
        self.file
            .read_exact_at(&mut there, slot_offset(rank))
            .map_err(|error| Error::io("read a memory probe", &error))?;
        Ok(there == *number)
    }

    /// Leaves a random number in another rank's probe. That number, and the one that was found there.
    pub(crate) fn leave(file: &File, me: usize) -> Result<(Nonce, Nonce)> {
        let failed = |error: std::io::Error| Error::io("use a memory probe", &error);
        let (mine, mut theirs) = (random()?, [0; 16]);
        file.read_exact_at(&mut theirs, 0).map_err(failed)?;
        file.write_all_at(&mine, slot_offset(me)).map_err(failed)?;
        Ok((mine, theirs))
    }
}

fn slot_offset(rank: usize) -> u64 {
    (rank as u64 + 1) * size_of::<Nonce>() as u64
}

/// Sends a descriptor with one byte.
pub(crate) fn give_descriptor(stream: &mut UnixStream, file: &File) -> Result<()> {
    send_with_descriptors(&*stream, &[1], &[file.as_fd()], SendFlags::empty())
        .map(drop)
        .map_err(|errno| Error::io("hand over shared memory", &errno.into()))
}

/// Receives what [`give_descriptor`] sent.
pub(crate) fn take_descriptor(stream: &mut UnixStream, deadline: Deadline) -> Result<Private<File>> {
    let came = receive_descriptors(stream, &mut [0], deadline)
        .map_err(|error| Error::io("take over shared memory", &error))?;
    let file = came.descriptors.into_iter().next();
    let file = file.ok_or_else(|| Error::new(ErrorKind::Closed, "the other rank handed over no memory"))?;
    Ok(file.map(File::from))
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_maps_a_probe_is_found_to_share_it() {
        // GROUP-6
        let (mine, other) = (Probe::new(3).unwrap(), Probe::new(3).unwrap());
        let (left, found) = Probe::leave(mine.file(), 2).unwrap();
        assert_eq!(found, mine.nonce());
        assert!(mine.holds(2, &left).unwrap());
        assert!(!mine.holds(1, &left).unwrap() && !other.holds(2, &left).unwrap());
    }
}
