//! Bytes on their way through a socket that doesn't block.

use std::io::{self, ErrorKind as IoKind, IoSlice, Read, Write};

use mio::net::TcpStream;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// What waits for one socket, in order.
#[derive(Debug, Default)]
pub(crate) struct Unsent {
    bytes: Vec<u8>,
    sent: usize,
}

impl Unsent {
    /// Where more is appended.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends what `wire` takes now; whether it took anything.
    ///
    /// # Errors
    /// Those of `wire`, but for "would block" and "interrupted".
    pub(crate) fn flush(&mut self, wire: &mut impl Write) -> io::Result<bool> {
        let before = self.sent;
        while self.sent < self.bytes.len() {
            match wire.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(IoKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(e) if would_block(&e) => {
                    let moved = self.sent > before;
                    // What is sent is not kept for long, however long there is more; each byte is moved once or twice.
                    if self.sent > self.bytes.len() / 2 {
                        self.bytes.drain(..std::mem::take(&mut self.sent));
                    }
                    return Ok(moved);
                }
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.bytes.clear();
        Ok(std::mem::take(&mut self.sent) > before)
    }
}

/// What there is to read: nothing yet, the end (0), or so many bytes.
pub(crate) fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match stream.read(buffer) {
            Err(e) if would_block(&e) => return Ok(None),
            Err(e) if e.kind() == IoKind::Interrupted => {}
            result => return result.map(Some),
        }
    }
}

/// Whether a socket takes or has nothing now; so says one that isn't connected yet, too.
pub(crate) fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), IoKind::WouldBlock | IoKind::NotConnected)
}

/// As `write_vectored`, which raises SIGPIPE where the peer has gone: in a driver that has it at its default, the end.
#[allow(clippy::disallowed_methods, reason = "no descriptors are sent")]
pub(crate) fn write_pieces(stream: &TcpStream, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    Ok(sendmsg(stream, pieces, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
}
