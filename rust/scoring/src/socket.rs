//! Packets, with a deadline or a look at who waits.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use phalanx_io::{receive_with_descriptors, send_with_descriptors};
use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::wire::MOST_BYTES;

/// Sends a packet; `Ok(false)` if the socket takes none now.
///
/// # Errors
/// [`ErrorKind::Closed`] if the other end has gone, [`ErrorKind::Invalid`] if the packet is too long.
pub(crate) fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    file: Option<BorrowedFd<'_>>,
) -> Result<bool> {
    let text = serde_json::to_vec(message)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("a message is no JSON: {error}")))?;
    if text.len() > MOST_BYTES {
        let why = format!("the description of a batch has {} bytes, and may have {MOST_BYTES}", text.len());
        return Err(Error::new(ErrorKind::Invalid, format!("{why}: it has too many columns")));
    }
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    match send_with_descriptors(socket, &text, &files, SendFlags::DONTWAIT) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(Error::new(ErrorKind::Closed, format!("the other end has gone: {error}"))),
    }
}

/// A packet that has come, with a descriptor; `None` where none has.
///
/// # Errors
/// [`ErrorKind::Closed`] if the other end has gone, [`ErrorKind::Protocol`] if it says what it can't.
pub(crate) fn receive<T: DeserializeOwned>(socket: impl AsFd) -> Result<Option<(T, Option<OwnedFd>)>> {
    let mut bytes = vec![0; MOST_BYTES];
    let mut got = match receive_with_descriptors(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok(got) if got.bytes > 0 => got,
        Ok(_) => return Err(Error::new(ErrorKind::Closed, "the other end has gone")),
        Err(Errno::AGAIN) => return Ok(None),
        Err(error) => return Err(Error::new(ErrorKind::Closed, format!("the other end has gone: {error}"))),
    };
    let message = serde_json::from_slice(&bytes[..got.bytes])
        .map_err(|error| Error::new(ErrorKind::Protocol, format!("an unknown message came: {error}")))?;
    Ok(Some((message, got.descriptors.pop())))
}

/// Until one of them has something, or the time is over.
pub(crate) fn wait(fds: &mut [PollFd<'_>], time: Duration) {
    let _ = poll(fds, Timespec::try_from(time).ok().as_ref());
}

/// Until there is something to read, or the time is over.
pub(crate) fn wait_readable(socket: impl AsFd, time: Duration) {
    wait(&mut [PollFd::new(&socket, PollFlags::IN)], time);
}

/// Until the socket takes a packet, or the time is over.
pub(crate) fn wait_writable(socket: impl AsFd, time: Duration) {
    wait(&mut [PollFd::new(&socket, PollFlags::OUT)], time);
}
