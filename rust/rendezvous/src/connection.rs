//! One non-blocking connection of the hub: TLS and its bytes, frames out of them, and bytes to send.
//!
//! - HUB-4 (bounded-unsent): what waits to be sent is bounded. A peer that doesn't read is closed, never waited for.
//! - HUB-5 (bounded-received): what is received but not yet whole is bounded by the longest frame that the
//!   connection's role may send; who has not proved itself may send `MAX_UNPROVED_BYTES` in all.

use std::io::{ErrorKind as IoKind, Read, Write};

use mio::net::TcpStream;
use phalanx_io::{FrameBuffer, TlsChannel};
use phalanx_types::{Attempt, Error, ErrorKind, Result};

use crate::arrival::Arrival;
use crate::spare::Spare;
use crate::unsent::Unsent;
use crate::wire;

/// The most bytes that wait to be sent to one peer.
const MAX_UNSENT_BYTES: usize = 16 << 20;
/// How much is read at once.
pub(crate) const READ_BYTES: usize = 64 << 10;
/// What a client sends until it has proved itself: a handshake of some hundred bytes, and its proof.
const MAX_UNPROVED_BYTES: usize = 2 * wire::MAX_HELLO_BYTES;

/// How far a connection has got, and what it is for.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Has yet to prove itself, and has sent so much.
    Unproved { bytes: usize },
    /// Joins, facts and orders of this partition.
    Control { partition: u32, attempt: Attempt },
    /// A task that waits for the seat of its partition.
    Spare(Box<Spare>),
    /// Live output of this partition.
    Logs { partition: u32, attempt: Attempt },
    /// A result on its way to the disk.
    Result { rank: u32, arrival: Arrival },
}

/// What only one connection of a hub brings at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Brings {
    /// The output of a partition's ranks.
    Logs(u32),
    /// The result of a rank.
    Result(u32),
}

impl Stage {
    /// What it brings that no older one may go on to bring, and of which attempt.
    pub(crate) fn brings(&self) -> Option<(Brings, Attempt)> {
        match self {
            Stage::Logs { partition, attempt } => Some((Brings::Logs(*partition), *attempt)),
            Stage::Result { rank, arrival } => Some((Brings::Result(*rank), arrival.attempt())),
            Stage::Unproved { .. } | Stage::Control { .. } | Stage::Spare(_) => None,
        }
    }

    /// The task that waits, if it is one.
    pub(crate) fn spare(&self) -> Option<&Spare> {
        match self {
            Stage::Spare(spare) => Some(spare),
            _ => None,
        }
    }

    /// The longest frame that the peer may send at this stage.
    pub(crate) fn max_frame_bytes(&self) -> usize {
        match self {
            Stage::Unproved { .. } => wire::MAX_HELLO_BYTES,
            Stage::Control { .. } | Stage::Spare(_) => wire::MAX_FRAME_BYTES,
            Stage::Logs { .. } | Stage::Result { .. } => wire::MAX_DATA_BYTES + 64,
        }
    }
}

/// Whether a connection goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadState {
    /// There may be more to read at once.
    More,
    /// Nothing to read until the next event.
    Drained,
    /// The peer closed its side.
    Ended,
}

/// `S` is a socket that doesn't block, and memory for the fuzzer.
#[derive(Debug)]
pub(crate) struct Connection<S = TcpStream> {
    pub(crate) stream: S,
    pub(crate) stage: Stage,
    pub(crate) inbox: FrameBuffer,
    tls: TlsChannel,
    /// As it goes over the wire.
    unsent: Unsent,
}

impl<S: Read + Write> Connection<S> {
    /// One that was accepted, and has yet to prove itself.
    pub(crate) fn new(stream: S, tls: TlsChannel) -> Connection<S> {
        let stage = Stage::Unproved { bytes: 0 };
        Connection { stream, stage, inbox: FrameBuffer::default(), tls, unsent: Unsent::default() }
    }

    /// What a proof must be bound to.
    pub(crate) fn binding(&self) -> Result<wire::Binding> {
        self.tls.binding()
    }

    /// Reads once, by way of `buffer`.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<ReadState> {
        match self.stream.read(buffer) {
            Ok(0) => Ok(ReadState::Ended),
            Ok(n) => self.take(&buffer[..n]).map(|()| ReadState::More),
            Err(e) if e.kind() == IoKind::WouldBlock => Ok(ReadState::Drained),
            Err(e) if e.kind() == IoKind::Interrupted => Ok(ReadState::More),
            Err(e) => Err(Error::io("read from a node", &e)),
        }
    }

    fn take(&mut self, came: &[u8]) -> Result<()> {
        if let Stage::Unproved { bytes } = &mut self.stage {
            *bytes += came.len();
            if *bytes > MAX_UNPROVED_BYTES {
                let why = format!("{bytes} bytes came where a proof of this job's token was expected");
                return Err(Error::new(ErrorKind::Refused, why));
            }
        }
        let taken = self.tls.receive(came, |said| self.inbox.push(said));
        // The next words of the handshake; after an error the word that tells the peer.
        let told = self.tls.drain(self.unsent.tail()).and_then(|()| self.flush());
        taken.and(told)
    }

    /// Queues `frame` and sends what the peer takes.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<()> {
        if self.unsent.len() + frame.len() > MAX_UNSENT_BYTES {
            return Err(Error::new(ErrorKind::Closed, "a node doesn't read what the hub says"));
        }
        self.tls.send(frame, self.unsent.tail())?;
        self.flush()
    }

    /// Sends what the peer takes.
    pub(crate) fn flush(&mut self) -> Result<()> {
        match self.unsent.flush(&mut self.stream) {
            Ok(_) => Ok(()),
            Err(e) if e.kind() == IoKind::WriteZero => {
                Err(Error::new(ErrorKind::Closed, "a node closed the connection"))
            }
            Err(e) => Err(Error::io("write to a node", &e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream as StdStream};

    use phalanx_io::{Identity, TlsServer};

    use super::*;

    /// A connection whose client has done its handshake, and then reads nothing.
    fn connected() -> (Connection, StdStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut there = StdStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let identity = Identity::new().unwrap();
        let mut client = TlsChannel::connect(identity.public_key(), "test").unwrap();
        let server = TlsServer::new(&identity, "test").unwrap().accept().unwrap();
        let mut connection = Connection::new(TcpStream::from_std(stream), server);
        let mut buffer = vec![0; READ_BYTES];
        while !connection.tls.is_ready() {
            let mut wire = Vec::new();
            client.drain(&mut wire).unwrap();
            there.write_all(&wire).unwrap();
            while connection.read(&mut buffer).unwrap() != ReadState::More {}
            if !client.is_ready() {
                let n = there.read(&mut buffer).unwrap();
                client.receive(&buffer[..n], |_| {}).unwrap();
            }
        }
        (connection, there)
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up_and_never_waited_for() {
        let (mut connection, _silent) = connected();
        let frame = vec![0; 1 << 20];
        // Beyond the bound only what the kernel takes.
        let sent = (0..256).take_while(|_| connection.send(&frame).is_ok()).count();
        assert!((16..256).contains(&sent), "HUB-4: {sent} MiB");
        assert_eq!(connection.send(&frame).unwrap_err().kind(), ErrorKind::Closed, "HUB-4");
        let slack = MAX_UNSENT_BYTES / 100;
        assert!(connection.unsent.len() <= MAX_UNSENT_BYTES + slack, "HUB-4");
    }

    #[test]
    fn what_is_sent_is_not_kept_for_a_peer_that_always_lags() {
        let (mut connection, mut there) = connected();
        there.set_nonblocking(true).unwrap();
        let frame = vec![0; 1 << 20];
        let mut buffer = vec![0; 1 << 20];
        // It is never told all: twice the bound goes by it while half of that waits.
        while connection.unsent.len() < MAX_UNSENT_BYTES / 2 {
            connection.send(&frame).unwrap();
        }
        for _ in 0..64 {
            let mut read = 0;
            while read < frame.len() && connection.unsent.len() > MAX_UNSENT_BYTES / 4 {
                match there.read(&mut buffer) {
                    Ok(n) => read += n,
                    Err(e) => assert_eq!(e.kind(), IoKind::WouldBlock),
                }
                connection.flush().unwrap();
            }
            connection.send(&frame).unwrap();
        }
        let kept = connection.unsent.tail().len();
        assert!(kept <= 2 * MAX_UNSENT_BYTES, "HUB-4: {kept} bytes are kept");
    }
}
