//! Blocking sockets whose calls end by a deadline, however slowly the other side sends.
//!
//! - GROUP-77 (absolute): the deadline is one for the whole call: bytes that drip in don't move it.

use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use phalanx_io::receive_with_descriptors;
use phalanx_types::{Deadline, Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use crate::forks::{Opening, Private};

/// As long as the system waits.
const LONGEST: Timespec = Timespec { tv_sec: 1 << 30, tv_nsec: 0 };

/// A socket that can be told how long to block.
pub(crate) trait Timed: Read + Write {
    /// Has each read and each write block for at most so long.
    fn set_patience(&self, patience: Option<Duration>) -> std::io::Result<()>;

    /// Blocks from now on, until the deadline at the latest.
    fn limit(&self, deadline: Deadline) -> Result<()> {
        let patience = deadline.left().map(|left| left.max(Duration::from_millis(1)));
        self.set_patience(patience).map_err(|error| Error::io("limit a socket's time", &error))
    }

    /// Fills `bytes`.
    fn receive(&mut self, bytes: &mut [u8], deadline: Deadline, doing: &str) -> Result<()> {
        let mut received = 0;
        while received < bytes.len() {
            received += self.receive_some(&mut bytes[received..], deadline, doing)?;
        }
        Ok(())
    }

    /// What there is next; nothing, now and then.
    fn receive_some(&mut self, bytes: &mut [u8], deadline: Deadline, doing: &str) -> Result<usize> {
        self.limit(in_time(deadline, doing)?)?;
        moved(self.read(bytes), doing)
    }

    /// Sends all of `bytes`.
    fn send(&mut self, bytes: &[u8], deadline: Deadline, doing: &str) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            self.limit(in_time(deadline, doing)?)?;
            sent += moved(self.write(&bytes[sent..]), doing)?;
        }
        Ok(())
    }
}

fn in_time(deadline: Deadline, doing: &str) -> Result<Deadline> {
    match deadline.passed() {
        true => Err(Error::new(
            ErrorKind::Timeout,
            format!("can't {doing}: the other side did not answer in time"),
        )),
        false => Ok(deadline),
    }
}

/// How many bytes went; a socket's own time-out is no error, since the deadline decides.
fn moved(result: std::io::Result<usize>, doing: &str) -> Result<usize> {
    match result {
        Ok(0) => Err(Error::io(doing, &IoKind::UnexpectedEof.into())),
        Ok(count) => Ok(count),
        Err(e) if [IoKind::Interrupted, IoKind::WouldBlock, IoKind::TimedOut].contains(&e.kind()) => Ok(0),
        Err(e) => Err(Error::io(doing, &e)),
    }
}

impl Timed for UnixStream {
    fn set_patience(&self, patience: Option<Duration>) -> std::io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(patience)?;
        self.set_write_timeout(patience)
    }
}

/// What [`receive_descriptors`] received.
pub(crate) struct Came {
    /// How many bytes; 0 at the end of the stream.
    pub(crate) bytes: usize,
    pub(crate) descriptors: Vec<Private<OwnedFd>>,
    /// Whether there were more, which this process has no room for.
    pub(crate) lacks_descriptors: bool,
}

/// Receives bytes into `bytes`, and the descriptors that come with them.
pub(crate) fn receive_descriptors(
    stream: &UnixStream,
    bytes: &mut [u8],
    deadline: Deadline,
) -> std::io::Result<Came> {
    loop {
        let left = deadline.left().map(|left| Timespec::try_from(left).unwrap_or(LONGEST));
        // GROUP-31: waited for out here.
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Err(IoKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let opening = Opening::begin();
        match receive_with_descriptors(stream, bytes, RecvFlags::DONTWAIT) {
            Ok(came) => {
                let private = came.descriptors.into_iter().map(|one| opening.private(one));
                return Ok(Came {
                    bytes: came.bytes,
                    descriptors: private.collect(),
                    lacks_descriptors: came.lacks_descriptors,
                });
            }
            Err(Errno::AGAIN) if deadline.passed() => return Err(IoKind::TimedOut.into()),
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_drips_is_late_all_the_same() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let dripping = std::thread::spawn(move || {
            while there.write_all(&[1]).is_ok() {
                phalanx_io::pause(Duration::from_millis(5), Deadline::never());
            }
        });
        let soon = Deadline::after(Duration::from_millis(200));
        let late = here.receive(&mut vec![0; 1 << 20], soon, "listen").unwrap_err();
        assert_eq!(late.kind(), ErrorKind::Timeout, "GROUP-77: {late}");
        drop(here);
        dripping.join().unwrap();
    }
}
