//! How messages' bytes get to one rank and back: a ring in shared memory inside a host, a link between hosts.

use std::io::ErrorKind as IoKind;
use std::sync::Arc;

use crate::futex::wake;
use crate::link::Link;
use crate::shm::{Ring, Segment};

/// How bytes get to one rank and back.
pub(crate) enum Pipe {
    Memory {
        segment: Arc<Segment>,
        local_rank: usize,
        outgoing: Ring,
        incoming: Ring,
    },
    Link(Arc<Link>),
    /// To a rank of another host, with which no message has been exchanged yet.
    Unopened,
}

impl Pipe {
    pub(crate) fn memory(segment: &Arc<Segment>, me: usize, local_rank: usize) -> Pipe {
        let ring = |from, to| Ring::new(Arc::clone(segment), from, to);
        Pipe::Memory {
            segment: Arc::clone(segment),
            local_rank,
            outgoing: ring(me, local_rank),
            incoming: ring(local_rank, me),
        }
    }

    /// Hands over what can be handed over now; how much that was.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Pipe::Memory { segment, local_rank, outgoing, .. } => {
                let count = outgoing.write(bytes);
                ring_doorbell(segment, *local_rank, count);
                Ok(count)
            }
            Pipe::Link(link) => not_yet(link.write(bytes)),
            Pipe::Unopened => Ok(0),
        }
    }

    /// Takes what is there; None at the end of the stream.
    pub(crate) fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<Option<usize>> {
        match self {
            Pipe::Memory { segment, local_rank, incoming, .. } => {
                let count = incoming.read(bytes);
                ring_doorbell(segment, *local_rank, count);
                Ok(Some(count))
            }
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

/// Tells a rank that its messages moved.
fn ring_doorbell(segment: &Segment, local_rank: usize, count: usize) {
    let doorbell = &segment.rank_record(local_rank).doorbell;
    if count > 0 && doorbell.ring() {
        wake(doorbell);
    }
}

fn not_yet(result: std::io::Result<usize>) -> std::io::Result<usize> {
    match result {
        Err(error) if matches!(error.kind(), IoKind::WouldBlock | IoKind::Interrupted) => Ok(0),
        result => result,
    }
}
