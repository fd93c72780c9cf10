//! A connection between two hosts: a TCP socket, and TLS 1.3 above it in a group that encrypts.
//!
//! It reads and writes as its socket does, so that who uses it needn't know which it is. Ends, errors and waiting are
//! the socket's. One thread at a time reads or writes; a second one waits for the first, never for the peer.
//!
//! - GROUP-58 (never-plain): what was connected or accepted with a key says and hears nothing that isn't encrypted.
//! - GROUP-59 (all-or-not-yet): bytes count as written once the kernel has all that became of them. So who has nothing
//!   left to write has nothing left to flush. Who was told "would block" comes again with the same bytes.
//! - GROUP-60 (as-said): what is read is what the peer wrote, in order. Bytes that were changed on the way are an
//!   error.

use std::cell::RefCell;
use std::io::{self, ErrorKind as IoKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_io::{PublicKey, TlsChannel, TlsServer};
use phalanx_types::{Error, ErrorKind, Result};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::forks::Private;

/// What two ranks speak above TLS.
pub(crate) const PROTOCOL: &str = "phalanx-collective/3";
/// How much is encrypted at a time: four of TLS's records, which stay in the caches.
const PIECE_BYTES: usize = 64 << 10;
/// The most that one call writes.
const MOST_WRITTEN: usize = 1 << 20;
/// The most that one call takes from the kernel, and the least that it asks for.
const MOST_READ: usize = 128 << 10;
const LEAST_READ: usize = 8 << 10;
/// What a record of TLS is longer than its text, and how long that is at most.
const RECORD_OVERHEAD: usize = 22;
const RECORD_BYTES: usize = 16 << 10;

thread_local! {
    /// What came from the kernel, on its way through TLS: nothing stays here between two calls.
    static INBOX: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One end of it.
#[derive(Debug)]
pub(crate) struct Link {
    socket: Private<TcpStream>,
    /// In a place of its own: a plain link is small.
    tls: Option<Box<Mutex<Tls>>>,
}

#[derive(Debug)]
struct Tls {
    channel: TlsChannel,
    /// What the peer said and nobody has read yet, from `taken` on.
    heard: Vec<u8>,
    taken: usize,
    /// Why nothing is heard behind that (GROUP-60).
    broken: Option<Error>,
    /// How many of the bytes that are to be written are encrypted, and not all handed to the kernel (GROUP-59).
    begun: usize,
}

impl Link {
    /// Nothing but the socket.
    pub(crate) fn plain(socket: Private<TcpStream>) -> Link {
        Link { socket, tls: None }
    }

    /// The end that connected, to the rank with the key `peer`. Its socket doesn't block. Nothing may be said before
    /// both [agree](Link::agree).
    pub(crate) fn dial(socket: Private<TcpStream>, peer: &PublicKey) -> Result<Link> {
        Ok(Link::encrypted(socket, TlsChannel::connect(peer, PROTOCOL)?))
    }

    /// Goes on with TLS's handshake, as far as that goes without waiting; whether it is over.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] only where the socket came to its end: all else would be the same another time.
    pub(crate) fn agree(&self) -> Result<bool> {
        self.tls().map_or(Ok(true), |mut tls| tls.agree(&mut Quietly(&self.socket)))
    }

    /// The end that was connected to. Reading goes through with TLS's handshake.
    pub(crate) fn accept(socket: Private<TcpStream>, tls: &TlsServer) -> Result<Link> {
        Ok(Link::encrypted(socket, tls.accept()?))
    }

    fn encrypted(socket: Private<TcpStream>, channel: TlsChannel) -> Link {
        Link { socket, tls: Some(Box::new(Mutex::new(Tls::new(channel)))) }
    }

    /// What only the two ends of it know; nothing if it is plain.
    pub(crate) fn binding(&self) -> Result<Vec<u8>> {
        self.tls().map_or(Ok(Vec::new()), |tls| Ok(tls.channel.binding()?.to_vec()))
    }

    /// For its options.
    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// As of a socket. "Interrupted" also says that what came was TLS's own.
    pub(crate) fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.tls() {
            Some(mut tls) => tls.read(&mut Quietly(&self.socket), bytes),
            None => (&*self.socket).read(bytes),
        }
    }

    /// As of a socket, but for GROUP-59.
    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self.tls() {
            Some(mut tls) => tls.write(&mut Quietly(&self.socket), bytes),
            None => (&*self.socket).write(bytes),
        }
    }

    /// Writes a short message. What the kernel doesn't take now, a later call hands it.
    pub(crate) fn post(&self, message: &[u8]) -> io::Result<()> {
        match self.tls() {
            Some(mut tls) => {
                tls.channel.queue(message).map_err(invalid)?;
                tls.channel.flush(&mut Quietly(&self.socket))
            }
            None => (&*self.socket).write(message).map(drop),
        }
    }

    fn tls(&self) -> Option<MutexGuard<'_, Tls>> {
        Some(self.tls.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Tls {
    fn new(channel: TlsChannel) -> Tls {
        Tls { channel, heard: Vec::new(), taken: 0, broken: None, begun: 0 }
    }

    fn agree(&mut self, wire: &mut (impl Read + Write)) -> Result<bool> {
        let failed = |error: &io::Error| Error::io("agree on encryption", error);
        let mut came = [0; 4096];
        loop {
            self.channel.flush(wire).map_err(|error| failed(&error))?;
            if self.channel.is_ready() {
                return Ok(true);
            }
            let count = match wire.read(&mut came) {
                Ok(0) => return Err(failed(&IoKind::UnexpectedEof.into())),
                Ok(count) => count,
                Err(error) if error.kind() == IoKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == IoKind::Interrupted => continue,
                Err(error) => return Err(failed(&error)),
            };
            let heard = &mut self.heard;
            if let Err(error) = self.channel.receive(&came[..count], |said| heard.extend_from_slice(said)) {
                // It is told why, if it listens.
                let _ = self.channel.flush(wire);
                return Err(match error.kind() {
                    ErrorKind::Closed => Error::new(ErrorKind::Protocol, error.to_string()),
                    _ => error,
                });
            }
        }
    }

    fn read(&mut self, wire: &mut (impl Read + Write), bytes: &mut [u8]) -> io::Result<usize> {
        if self.taken < self.heard.len() {
            let count = bytes.len().min(self.heard.len() - self.taken);
            bytes[..count].copy_from_slice(&self.heard[self.taken..][..count]);
            self.taken += count;
            return Ok(count);
        }
        if let Some(error) = &self.broken {
            return Err(invalid(error.clone()));
        }
        self.heard.clear();
        self.taken = 0;
        let records = bytes.len().div_ceil(RECORD_BYTES);
        let most = (bytes.len() + records * RECORD_OVERHEAD).clamp(LEAST_READ, MOST_READ);
        INBOX.with_borrow_mut(|inbox| {
            inbox.resize(MOST_READ, 0);
            let count = wire.read(&mut inbox[..most])?;
            if count == 0 {
                return Ok(0);
            }
            let (mut filled, heard) = (0, &mut self.heard);
            let received = self.channel.receive(&inbox[..count], |said| {
                let (now, later) = said.split_at(said.len().min(bytes.len() - filled));
                bytes[filled..][..now.len()].copy_from_slice(now);
                filled += now.len();
                heard.extend_from_slice(later);
            });
            // Its part of a handshake, or why it gives up. What the kernel doesn't take goes with what is next.
            let _ = self.channel.flush(wire);
            self.broken = received.err();
            match &self.broken {
                // What came before that is heard first.
                _ if filled > 0 => Ok(filled),
                Some(error) => Err(invalid(error.clone())),
                None => Err(IoKind::Interrupted.into()),
            }
        })
    }

    fn write(&mut self, wire: &mut impl Write, bytes: &[u8]) -> io::Result<usize> {
        let mut written = 0;
        while written < bytes.len().min(MOST_WRITTEN) {
            if self.begun == 0 {
                let piece = &bytes[written..][..PIECE_BYTES.min(bytes.len() - written)];
                self.channel.queue(piece).map_err(invalid)?;
                self.begun = piece.len();
            }
            match self.channel.flush(wire) {
                Ok(()) => written += std::mem::take(&mut self.begun),
                // Whatever it is, the next call meets it again; these have gone (GROUP-59).
                Err(_) if written > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(IoKind::InvalidData, error)
}

/// A socket that raises no signal when the peer is gone, also for several pieces at once.
struct Quietly<'a>(&'a TcpStream);

impl Read for Quietly<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.0.read(bytes)
    }
}

impl Write for Quietly<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    #[allow(clippy::disallowed_methods, reason = "no descriptors are sent")]
    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(sendmsg(self.0, pieces, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(not(miri))]
#[cfg(test)]
mod tests {
    use phalanx_io::Identity;

    use super::*;

    /// A connection whose handshake is over.
    fn ends() -> (Tls, Tls) {
        let identity = Identity::new().unwrap();
        let mut server = TlsServer::new(&identity, PROTOCOL).unwrap().accept().unwrap();
        let mut client = TlsChannel::connect(identity.public_key(), PROTOCOL).unwrap();
        while !client.is_ready() || !server.is_ready() {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            client.drain(&mut there).unwrap();
            server.receive(&there, |_| {}).unwrap();
            server.drain(&mut back).unwrap();
            client.receive(&back, |_| {}).unwrap();
        }
        (Tls::new(client), Tls::new(server))
    }

    /// A socket that has `came`, and keeps what is written; each write that `fails` numbers is interrupted.
    #[derive(Default)]
    struct Wire {
        came: Vec<u8>,
        went: Vec<u8>,
        writes: usize,
        fails: Vec<usize>,
    }

    impl Read for Wire {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.came.len());
            bytes[..count].copy_from_slice(&self.came[..count]);
            self.came.drain(..count);
            if count == 0 { Err(IoKind::WouldBlock.into()) } else { Ok(count) }
        }
    }

    impl Write for Wire {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.writes += 1;
            if self.fails.contains(&self.writes) {
                return Err(IoKind::Interrupted.into());
            }
            self.went.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_write_that_is_interrupted_between_two_pieces_sends_nothing_twice() {
        let said: Vec<u8> = (0..5 * PIECE_BYTES).map(|at| (at % 251) as u8).collect();
        for fails in 1..40 {
            let (mut one, mut other) = ends();
            let mut wire = Wire { fails: vec![fails], ..Wire::default() };
            let mut left = &said[..];
            while !left.is_empty() {
                match one.write(&mut wire, left) {
                    Ok(count) => left = &left[count..],
                    Err(error) => assert_eq!(error.kind(), IoKind::Interrupted),
                }
            }
            let mut heard = Vec::new();
            other.channel.receive(&wire.went, |piece| heard.extend_from_slice(piece)).unwrap();
            assert!(heard == said, "GROUP-59: the write with the number {fails} failed");
        }
    }

    #[test]
    fn what_came_before_bytes_that_were_changed_is_read_and_nothing_behind_them() {
        for read_bytes in [1, 4, 100] {
            let (mut one, mut other) = ends();
            let mut wire = Wire::default();
            assert_eq!(one.write(&mut wire, b"first").unwrap(), 5);
            let changed = wire.went.len() + 10;
            for more in [&b"second"[..], b"third"] {
                one.write(&mut wire, more).unwrap();
            }
            let mut here = Wire { came: wire.went, ..Wire::default() };
            here.came[changed] ^= 1;
            let (mut heard, mut bytes) = (Vec::new(), vec![0; read_bytes]);
            let error = loop {
                match other.read(&mut here, &mut bytes) {
                    Ok(count) => heard.extend_from_slice(&bytes[..count]),
                    Err(error) => break error,
                }
            };
            assert_eq!((heard.as_slice(), error.kind()), (&b"first"[..], IoKind::InvalidData), "GROUP-60");
            let again = other.read(&mut here, &mut bytes).unwrap_err();
            assert_eq!(again.kind(), IoKind::InvalidData, "GROUP-60");
        }
    }
}
