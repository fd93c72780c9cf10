//! Messages to each other rank that were sent and not yet handed over, and messages from it that arrived and were not
//! yet asked for. Both are without limit.

use std::collections::VecDeque;
use std::sync::Arc;

use phalanx_types::{Error, ErrorKind, Result};

use crate::connections::{Connections, MESSAGES};
use crate::link::Link;
use crate::p2p::pipe::Pipe;

const HEADER_BYTES: usize = 16;
/// How much is read at a time into a message whose length a peer claims, so that a claim alone takes no memory.
const READ_BYTES: usize = 128 << 10;

#[derive(Debug)]
struct Message {
    tag: u64,
    bytes: Vec<u8>,
}

/// The messages to and from one rank.
struct Mailbox {
    rank: usize,
    /// None for this rank itself.
    pipe: Option<Pipe>,
    /// With their headers; the first one's bytes up to `sent` are gone.
    outgoing: VecDeque<Vec<u8>>,
    sent: usize,
    header: Vec<u8>,
    /// The message that is arriving, and how long it will be.
    arriving: Option<(Message, usize)>,
    arrived: VecDeque<Message>,
    has_ended: bool,
}

/// All messages of a rank.
pub(crate) struct Mailboxes {
    boxes: Vec<Mailbox>,
    /// To ranks of other hosts, where there are any.
    connections: Option<Arc<Connections>>,
}

impl Mailboxes {
    /// `pipes` by rank; None for this rank itself.
    pub(crate) fn new(pipes: Vec<Option<Pipe>>, connections: Option<Arc<Connections>>) -> Mailboxes {
        let boxes = pipes.into_iter().enumerate().map(|(rank, pipe)| Mailbox {
            rank,
            pipe,
            outgoing: VecDeque::new(),
            sent: 0,
            header: Vec::new(),
            arriving: None,
            arrived: VecDeque::new(),
            has_ended: false,
        });
        Mailboxes { boxes: boxes.collect(), connections }
    }

    /// Adds a message to those that are to be sent, and sends what can be sent now.
    pub(crate) fn post(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Result<()> {
        let mailbox = &mut self.boxes[to];
        if mailbox.pipe.is_none() {
            mailbox.arrived.push_back(Message { tag, bytes: bytes.to_vec() });
            return Ok(());
        }
        let mut message = Vec::with_capacity(HEADER_BYTES + bytes.len());
        message.extend_from_slice(&tag.to_le_bytes());
        message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        message.extend_from_slice(bytes);
        mailbox.outgoing.push_back(message);
        if let (true, Some(connections)) = (mailbox.is_unopened(), &self.connections) {
            // OPEN-1
            connections.ask((to, MESSAGES));
        }
        mailbox.flush().map(drop)
    }

    /// Uses the connections that have come.
    pub(crate) fn connect(&mut self) {
        for (rank, link) in self.connections.iter().flat_map(|connections| connections.take_messages()) {
            self.boxes[rank].pipe = Some(Pipe::Link(Arc::new(link)));
        }
    }

    /// Tells of connections that come later, if they may.
    pub(crate) fn connections(&self) -> Option<Arc<Connections>> {
        self.connections.clone()
    }

    /// The ranks to which messages wait for a connection, among these.
    pub(crate) fn unreached(&self, to: Option<usize>) -> impl Iterator<Item = usize> {
        let boxes = self.boxes.iter().filter(move |mailbox| to.is_none_or(|to| mailbox.rank == to));
        boxes
            .filter(|mailbox| mailbox.is_unopened() && !mailbox.outgoing.is_empty())
            .map(|mailbox| mailbox.rank)
    }

    /// Moves what can be moved without waiting; whether anything did.
    pub(crate) fn progress(&mut self) -> Result<bool> {
        self.connect();
        let mut has_moved = false;
        for mailbox in &mut self.boxes {
            has_moved |= mailbox.flush()?;
            has_moved |= mailbox.fill()?;
        }
        Ok(has_moved)
    }

    /// The oldest message with this tag, from one rank or from any, and who sent it.
    pub(crate) fn take(&mut self, from: Option<usize>, tag: u64) -> Option<(usize, Vec<u8>)> {
        let boxes = self.boxes.iter_mut().filter(|mailbox| from.is_none_or(|from| mailbox.rank == from));
        for mailbox in boxes {
            // SEND-1
            if let Some(index) = mailbox.arrived.iter().position(|message| message.tag == tag) {
                return mailbox.arrived.remove(index).map(|message| (mailbox.rank, message.bytes));
            }
        }
        None
    }

    /// Whether messages to some rank, or to this one, wait to be handed over.
    pub(crate) fn has_unsent(&self, to: Option<usize>) -> bool {
        self.boxes
            .iter()
            .any(|mailbox| to.is_none_or(|to| mailbox.rank == to) && !mailbox.outgoing.is_empty())
    }

    /// Whether a message is on its way out or in.
    pub(crate) fn is_busy(&self) -> bool {
        self.boxes.iter().any(|mailbox| !mailbox.outgoing.is_empty() || mailbox.arriving.is_some())
    }

    /// The links by which messages from one rank, or from any, come; and whether they wait to be written to.
    pub(crate) fn links(&self, from: Option<usize>) -> Vec<(Arc<Link>, bool)> {
        let boxes = self.boxes.iter().filter(|mailbox| from.is_none_or(|from| mailbox.rank == from));
        boxes
            .filter(|mailbox| !mailbox.has_ended)
            .filter_map(|mailbox| {
                Some((Arc::clone(mailbox.pipe.as_ref()?.link()?), !mailbox.outgoing.is_empty()))
            })
            .collect()
    }

    /// Whether nothing more can come from a rank that has left: all that it sent has been heard (OPEN-3).
    pub(crate) fn ended(&mut self, from: Option<usize>) -> bool {
        self.connect();
        from.is_some_and(|from| self.boxes[from].has_ended || self.boxes[from].is_unopened())
    }
}

impl Mailbox {
    fn is_unopened(&self) -> bool {
        matches!(self.pipe, Some(Pipe::Unopened))
    }

    fn flush(&mut self) -> Result<bool> {
        let Mailbox { rank, pipe: Some(pipe), outgoing, sent, .. } = self else { return Ok(false) };
        let mut has_moved = false;
        while let Some(message) = outgoing.front() {
            let count = pipe.write(&message[*sent..]).map_err(|error| broken(*rank, &error))?;
            has_moved |= count > 0;
            *sent += count;
            if *sent < message.len() {
                break;
            }
            outgoing.pop_front();
            *sent = 0;
        }
        Ok(has_moved)
    }

    fn fill(&mut self) -> Result<bool> {
        let Mailbox { rank, pipe: Some(pipe), .. } = self else { return Ok(false) };
        let mut has_moved = false;
        while !self.has_ended {
            let mut read = |bytes: &mut [u8]| pipe.read(bytes).map_err(|error| broken(*rank, &error));
            let count = match &mut self.arriving {
                None => {
                    let mut header = [0; HEADER_BYTES];
                    let missing = HEADER_BYTES - self.header.len();
                    let count = read(&mut header[..missing])?;
                    self.header.extend_from_slice(&header[..count.unwrap_or(0)]);
                    count
                }
                Some((message, length)) => {
                    let start = message.bytes.len();
                    message.bytes.resize(start + (*length - start).min(READ_BYTES), 0);
                    let count = read(&mut message.bytes[start..])?;
                    message.bytes.truncate(start + count.unwrap_or(0));
                    count
                }
            };
            match count {
                // The sentinel's connection says whether that was in good order.
                None => self.has_ended = true,
                Some(0) => break,
                Some(_) => has_moved = true,
            }
            if let Ok(header) = <[u8; HEADER_BYTES]>::try_from(&self.header[..]) {
                let (words, _) = header.as_chunks::<8>();
                let message = Message { tag: u64::from_le_bytes(words[0]), bytes: Vec::new() };
                self.arriving = Some((message, u64::from_le_bytes(words[1]) as usize));
                self.header.clear();
            }
            if self.arriving.as_ref().is_some_and(|(message, length)| message.bytes.len() == *length) {
                self.arrived.extend(self.arriving.take().map(|(message, _)| message));
            }
        }
        Ok(has_moved)
    }
}

fn broken(rank: usize, error: &std::io::Error) -> Error {
    Error::new(
        ErrorKind::PeerLost,
        format!("rank {rank} can't be reached: its connection for messages broke: {error}"),
    )
}
