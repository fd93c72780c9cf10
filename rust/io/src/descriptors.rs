//! Passing open descriptors to another process, along with bytes, over a Unix socket (`SCM_RIGHTS`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::{Errno, Result, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// How many descriptors can come with one call.
pub const MAX_DESCRIPTORS: usize = 8;

/// What came in one call.
#[derive(Debug)]
pub struct Received {
    /// How many bytes came; 0 at the end of a stream.
    pub bytes: usize,
    /// The descriptors that came with them, closed in a program that this process starts.
    pub descriptors: Vec<OwnedFd>,
    /// Whether there were more, which this process has no room for.
    pub lacks_descriptors: bool,
}

/// Sends `bytes` and, with the first of them, `descriptors`, at most [`MAX_DESCRIPTORS`]; how many bytes have gone.
///
/// `flags` say whether it may block. A peer that has gone is an error, never a signal.
///
/// # Errors
/// Those of `sendmsg(2)`.
#[allow(clippy::disallowed_methods, reason = "this is what others call instead")]
pub fn send_with_descriptors(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(Errno::INVAL);
    }
    retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, flags | SendFlags::NOSIGNAL)
    })
}

/// Receives bytes into `bytes`, and the descriptors that come with them.
///
/// `flags` say whether it may block.
///
/// # Errors
/// Those of `recvmsg(2)`.
#[allow(clippy::disallowed_methods, reason = "this is what others call instead")]
pub fn receive_with_descriptors(socket: impl AsFd, bytes: &mut [u8], flags: RecvFlags) -> Result<Received> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(&socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(those) = message {
            descriptors.extend(those);
        }
    }
    let lacks_descriptors = received.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { bytes: received.bytes, descriptors, lacks_descriptors })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use rustix::io::{FdFlags, fcntl_getfd};
    use rustix::pipe::{PipeFlags, pipe_with};

    use super::*;

    #[test]
    fn descriptors_arrive_with_the_bytes_they_were_sent_with_in_order() {
        let (near, far) = UnixStream::pair().unwrap();
        let pipes: Vec<_> = (0..MAX_DESCRIPTORS).map(|_| pipe_with(PipeFlags::CLOEXEC).unwrap()).collect();
        let ends: Vec<_> = pipes.iter().map(|(_, into)| into.as_fd()).collect();
        assert_eq!(send_with_descriptors(&near, b"with", &ends, SendFlags::empty()), Ok(4));
        assert_eq!(send_with_descriptors(&near, b"without", &[], SendFlags::empty()), Ok(7));
        let mut bytes = [0; 4];
        let got = receive_with_descriptors(&far, &mut bytes, RecvFlags::empty()).unwrap();
        assert_eq!((got.bytes, got.descriptors.len(), got.lacks_descriptors), (4, MAX_DESCRIPTORS, false));
        for (number, ((out, _), into)) in (0..).zip(pipes.iter().zip(got.descriptors)) {
            assert!(fcntl_getfd(&into).unwrap().contains(FdFlags::CLOEXEC));
            std::fs::File::from(into).write_all(&[number]).unwrap();
            let mut said = [0; 1];
            std::fs::File::from(out.try_clone().unwrap()).read_exact(&mut said).unwrap();
            assert_eq!(said, [number]);
        }
        let got = receive_with_descriptors(&far, &mut [0; 16], RecvFlags::empty()).unwrap();
        assert_eq!((got.bytes, got.descriptors.len()), (7, 0));
        drop(near);
        assert_eq!(receive_with_descriptors(&far, &mut [0; 1], RecvFlags::empty()).unwrap().bytes, 0);
    }

    #[test]
    fn flags_say_whether_it_blocks_and_a_peer_that_has_gone_is_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        let nothing = receive_with_descriptors(&near, &mut [0; 1], RecvFlags::DONTWAIT).unwrap_err();
        assert_eq!(nothing, Errno::AGAIN);
        drop(far);
        assert_eq!(send_with_descriptors(&near, b"x", &[], SendFlags::empty()), Err(Errno::PIPE));
        let many = vec![near.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(send_with_descriptors(&near, b"x", &many, SendFlags::empty()), Err(Errno::INVAL));
    }
}
