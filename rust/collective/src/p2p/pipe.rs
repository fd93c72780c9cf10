//! How messages' bytes get to one rank and back: a ring in shared memory inside a host, a link between hosts.

use std::io::ErrorKind as IoKind;
use std::sync::Arc;

use crate::bell::PeerBell;
use crate::door::link::Link;
use crate::shm::Ring;

/// How bytes get to one rank and back.
pub(crate) enum Pipe {
    Memory {
        outgoing: Ring,
        incoming: Ring,
        bell: PeerBell,
    },
    Link(Arc<Link>),
    /// To a rank of another host, with which no message has been exchanged yet.
    Unopened,
}

impl Pipe {
    /// Hands over what can be handed over now; how much that was.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Pipe::Memory { outgoing, bell, .. } => Ok(rung(bell, outgoing.write(bytes))),
            Pipe::Link(link) => not_yet(link.write(bytes)),
            Pipe::Unopened => Ok(0),
        }
    }

    /// Takes what is there; None at the end of the stream.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<Option<usize>> {
        match self {
            Pipe::Memory { incoming, bell, .. } => Ok(Some(rung(bell, incoming.read(bytes)))),
            Pipe::Unopened => Ok(Some(0)),
            Pipe::Link(link) => loop {
                match link.read(bytes) {
                    Ok(0) => return Ok(None),
                    Err(error) if error.kind() == IoKind::Interrupted => {}
                    result => return not_yet(result).map(Some),
                }
            },
        }
    }

    /// What to wait at for messages; None where a doorbell rings, and where there is nothing yet.
    pub(crate) fn link(&self) -> Option<&Arc<Link>> {
        match self {
            Pipe::Memory { .. } | Pipe::Unopened => None,
            Pipe::Link(link) => Some(link),
        }
    }
}

/// Tells a rank that its messages moved, if some did.
fn rung(bell: &PeerBell, count: usize) -> usize {
    if count > 0 {
        bell.ring();
    }
    count
}

fn not_yet(result: std::io::Result<usize>) -> std::io::Result<usize> {
    match result {
        Err(error) if matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted) => Ok(0),
        result => result,
    }
}
