//! One non-blocking connection of the hub: bytes in, frames out of them, and bytes to send.
//!
//! CONN-1: what waits to be sent is bounded; a peer that doesn't read is closed, never waited for. CONN-2: what is
//! received but not yet whole is bounded by the longest frame that the connection's role may send.

use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};

use mio::net::TcpStream;
use phalanx_types::message::Challenge;
use phalanx_types::{Error, ErrorKind, Result};

use crate::wire::{self, Frame};

/// The most bytes that wait to be sent to one peer.
const MAX_UNSENT_BYTES: usize = 16 << 20;
/// How much is read at once.
const READ_BYTES: usize = 64 << 10;

/// How far a connection has got, and what it is for.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Has been asked to prove itself.
    Challenged { challenge: Challenge },
    /// Joins, facts and orders of this partition.
    Control { partition: u32, attempt: u32 },
    /// Live output of this partition.
    Logs { partition: u32, attempt: u32 },
    /// A result on its way into a file; into none where it can't be kept.
    Result { rank: u32, file: Option<File>, left: u64 },
}

impl Stage {
    /// The longest frame that the peer may send at this stage.
    pub(crate) fn max_frame_bytes(&self) -> usize {
        match self {
            Stage::Challenged { .. } => wire::MAX_HELLO_BYTES,
            Stage::Control { .. } => wire::MAX_FRAME_BYTES,
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

/// What was received and not yet taken as frames.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    received: Vec<u8>,
    taken: usize,
}

impl Inbox {
    /// The next whole frame.
    pub(crate) fn next_frame(&mut self, max_bytes: usize) -> Result<Option<Frame<'_>>> {
        match wire::decode(&self.received[self.taken..], max_bytes)? {
            None => Ok(None),
            Some((frame, used)) => {
                self.taken += used;
                Ok(Some(frame))
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) stage: Stage,
    pub(crate) inbox: Inbox,
    unsent: Vec<u8>,
    sent: usize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream, stage: Stage) -> Connection {
        Connection { stream, stage, inbox: Inbox::default(), unsent: Vec::new(), sent: 0 }
    }

    /// Reads once.
    pub(crate) fn read(&mut self) -> Result<ReadState> {
        let Inbox { received, taken } = &mut self.inbox;
        received.drain(..std::mem::take(taken));
        let old = received.len();
        received.resize(old + READ_BYTES, 0);
        let result = self.stream.read(&mut received[old..]);
        received.truncate(old + *result.as_ref().unwrap_or(&0));
        match result {
            Ok(0) => Ok(ReadState::Ended),
            Ok(_) => Ok(ReadState::More),
            Err(e) if e.kind() == IoKind::WouldBlock => Ok(ReadState::Drained),
            Err(e) if e.kind() == IoKind::Interrupted => Ok(ReadState::More),
            Err(e) => Err(Error::io("read from a node", &e)),
        }
    }

    /// Queues `frame` and sends what the peer takes.
    pub(crate) fn send(&mut self, frame: &[u8]) -> Result<()> {
        if self.unsent.len() - self.sent + frame.len() > MAX_UNSENT_BYTES {
            return Err(Error::new(ErrorKind::Closed, "a node doesn't read what the hub says"));
        }
        self.unsent.extend_from_slice(frame);
        self.flush()
    }

    /// Sends what the peer takes.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while self.sent < self.unsent.len() {
            match self.stream.write(&self.unsent[self.sent..]) {
                Ok(0) => return Err(Error::new(ErrorKind::Closed, "a node closed the connection")),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == IoKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == IoKind::Interrupted => {}
                Err(e) => return Err(Error::io("write to a node", &e)),
            }
        }
        self.unsent.clear();
        self.sent = 0;
        Ok(())
    }
}
