//! Messages to each other rank that were sent and not yet handed over, and messages from it that arrived and were not
//! yet asked for. Both are without limit.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use crate::door::connections::{Connections, MESSAGES};
use crate::door::link::Link;
use crate::p2p::pipe::Pipe;
use crate::p2p::unsent::Unsent;

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
    /// The bytes of messages that will never be handed over.
    lost: Vec<usize>,
    header: Vec<u8>,
    /// The message that is arriving, and how long it will be.
    arriving: Option<(Message, usize)>,
    arrived: VecDeque<Message>,
    /// When some of it arrived last.
    heard: Option<Instant>,
    /// Whether the pipe came to its end, or broke.
    has_ended: bool,
}

/// All messages of a rank.
pub(crate) struct Mailboxes {
    boxes: Vec<Mailbox>,
    /// To ranks of other hosts, where there are any.
    connections: Option<Arc<Connections>>,
}

/// What came of a look at all mailboxes.
#[derive(Debug, Default)]
pub(crate) struct Moved {
    /// Whether anything moved.
    pub(crate) is_some: bool,
    /// Whether others may wait for just that: a message is whole, or a connection has come or ended.
    pub(crate) is_news: bool,
    /// To which rank a connection broke, and how.
    pub(crate) broken: Vec<(usize, io::Error)>,
}

impl Mailboxes {
    /// `pipes` by rank; None for this rank itself.
    pub(crate) fn new(pipes: Vec<Option<Pipe>>, connections: Option<Arc<Connections>>) -> Mailboxes {
        let boxes = pipes.into_iter().enumerate().map(|(rank, pipe)| Mailbox {
            rank,
            pipe,
            outgoing: VecDeque::new(),
            sent: 0,
            lost: Vec::new(),
            header: Vec::new(),
            arriving: None,
            arrived: VecDeque::new(),
            heard: None,
            has_ended: false,
        });
        Mailboxes { boxes: boxes.collect(), connections }
    }

    /// Adds a message to those that are to be sent, and sends what can be sent to that rank now.
    pub(crate) fn post(&mut self, to: usize, tag: u64, bytes: &[u8]) -> Moved {
        let mailbox = &mut self.boxes[to];
        let mut moved = Moved::default();
        if mailbox.pipe.is_none() {
            mailbox.arrived.push_back(Message { tag, bytes: bytes.to_vec() });
            moved.is_news = true;
            return moved;
        }
        let mut message = Vec::with_capacity(HEADER_BYTES + bytes.len());
        message.extend_from_slice(&tag.to_le_bytes());
        message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        message.extend_from_slice(bytes);
        mailbox.outgoing.push_back(message);
        if let (true, Some(connections)) = (mailbox.is_unopened(), &self.connections) {
            // GROUP-13
            connections.ask((to, MESSAGES));
        }
        let sent = mailbox.flush(&mut moved);
        mailbox.note(sent, &mut moved);
        moved
    }

    /// Takes back the message to a rank that was posted last, if it will never be handed over; whether that is so.
    pub(crate) fn withdraw(&mut self, to: usize) -> bool {
        self.boxes[to].lost.pop().is_some()
    }

    /// Whether messages to a rank wait for a connection.
    pub(crate) fn is_opening(&self, to: usize) -> bool {
        self.boxes[to].is_unopened() && !self.boxes[to].outgoing.is_empty()
    }

    /// Moves what can be moved without waiting. What is for a rank that `is_gone` is lost.
    pub(crate) fn progress(&mut self, is_gone: impl Fn(usize) -> bool) -> Moved {
        let mut moved = Moved::default();
        for (rank, link) in self.connections.iter().flat_map(|connections| connections.take_messages()) {
            self.boxes[rank].pipe = Some(Pipe::Link(Arc::new(link)));
            moved.is_news = true;
        }
        for mailbox in &mut self.boxes {
            if !mailbox.outgoing.is_empty() && is_gone(mailbox.rank) {
                mailbox.give_up();
                moved.is_news = true;
            }
            let done = mailbox.flush(&mut moved).and_then(|()| mailbox.fill(&mut moved));
            mailbox.note(done, &mut moved);
        }
        moved
    }

    /// The oldest message with this tag, from one rank or from any, and who sent it.
    pub(crate) fn take(&mut self, from: Option<usize>, tag: u64) -> Option<(usize, Vec<u8>)> {
        let boxes = self.boxes.iter_mut().filter(|mailbox| from.is_none_or(|from| mailbox.rank == from));
        for mailbox in boxes {
            // GROUP-61
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

    /// How many bytes wait to be handed over, whatever they belong to.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.boxes
            .iter()
            .map(|mailbox| mailbox.outgoing.iter().map(Vec::len).sum::<usize>() - mailbox.sent)
            .sum()
    }

    /// What waits to be handed over.
    pub(crate) fn unsent(&self) -> Vec<Unsent> {
        self.each(|mailbox| mailbox.outgoing.iter().map(|message| message.len() - HEADER_BYTES).collect())
    }

    /// What will never be handed over, since its receiver is gone.
    pub(crate) fn lost(&self) -> Vec<Unsent> {
        self.each(|mailbox| mailbox.lost.clone())
    }

    fn each(&self, lengths: impl Fn(&Mailbox) -> Vec<usize>) -> Vec<Unsent> {
        let all = self.boxes.iter().map(|mailbox| (mailbox.rank, lengths(mailbox)));
        let some = all.filter(|(_, lengths)| !lengths.is_empty());
        some.map(|(to, lengths)| Unsent { to, messages: lengths.len(), bytes: lengths.iter().sum() })
            .collect()
    }

    /// Whether a message is on its way out or in.
    pub(crate) fn is_busy(&self) -> bool {
        self.boxes.iter().any(|mailbox| !mailbox.outgoing.is_empty() || mailbox.arriving.is_some())
    }

    /// The links by which messages come, with the ranks; and whether they wait to be written to.
    pub(crate) fn links(&self) -> Vec<(usize, Arc<Link>, bool)> {
        let boxes = self.boxes.iter().filter(|mailbox| !mailbox.has_ended);
        boxes
            .filter_map(|mailbox| {
                let link = mailbox.pipe.as_ref()?.link()?;
                Some((mailbox.rank, Arc::clone(link), !mailbox.outgoing.is_empty()))
            })
            .collect()
    }

    /// Whether nothing comes any more from a rank of another host that has left: all that it sent has been heard, or
    /// nothing was sent (GROUP-15).
    pub(crate) fn has_ended(&self, rank: usize) -> bool {
        self.boxes[rank].has_ended || self.boxes[rank].is_unopened()
    }

    /// When something of a rank of another host arrived last.
    pub(crate) fn heard(&self, rank: usize) -> Option<Instant> {
        self.boxes[rank].heard
    }
}

impl Mailbox {
    fn is_unopened(&self) -> bool {
        matches!(self.pipe, Some(Pipe::Unopened))
    }

    fn give_up(&mut self) {
        self.lost.extend(self.outgoing.drain(..).map(|message| message.len() - HEADER_BYTES));
        self.sent = 0;
    }

    /// Notes that the pipe broke, if it did.
    fn note(&mut self, result: io::Result<()>, moved: &mut Moved) {
        if let Err(error) = result {
            self.has_ended = true;
            moved.is_news = true;
            moved.broken.push((self.rank, error));
        }
    }

    fn flush(&mut self, moved: &mut Moved) -> io::Result<()> {
        let Mailbox { pipe: Some(pipe), outgoing, sent, has_ended: false, .. } = self else { return Ok(()) };
        while let Some(message) = outgoing.front() {
            let count = pipe.write(&message[*sent..])?;
            moved.is_some |= count > 0;
            *sent += count;
            if *sent < message.len() {
                break;
            }
            outgoing.pop_front();
            *sent = 0;
        }
        Ok(())
    }

    fn fill(&mut self, moved: &mut Moved) -> io::Result<()> {
        let Mailbox { pipe: Some(pipe), .. } = self else { return Ok(()) };
        while !self.has_ended {
            let count = match &mut self.arriving {
                None => {
                    let mut header = [0; HEADER_BYTES];
                    let missing = HEADER_BYTES - self.header.len();
                    let count = pipe.read(&mut header[..missing])?;
                    self.header.extend_from_slice(&header[..count.unwrap_or(0)]);
                    count
                }
                Some((message, length)) => {
                    let start = message.bytes.len();
                    message.bytes.resize(start + (*length - start).min(READ_BYTES), 0);
                    let count = pipe.read(&mut message.bytes[start..])?;
                    message.bytes.truncate(start + count.unwrap_or(0));
                    count
                }
            };
            match count {
                // The sentinel's connection says whether that was in good order.
                None => {
                    self.has_ended = true;
                    moved.is_news = true;
                }
                Some(0) => break,
                Some(_) => {
                    moved.is_some = true;
                    self.heard = Some(Instant::now());
                }
            }
            if let Ok(header) = <[u8; HEADER_BYTES]>::try_from(&self.header[..]) {
                let (words, _) = header.as_chunks::<8>();
                let message = Message { tag: u64::from_le_bytes(words[0]), bytes: Vec::new() };
                self.arriving = Some((message, u64::from_le_bytes(words[1]) as usize));
                self.header.clear();
            }
            if self.arriving.as_ref().is_some_and(|(message, length)| message.bytes.len() == *length) {
                self.arrived.extend(self.arriving.take().map(|(message, _)| message));
                moved.is_news = true;
            }
        }
        Ok(())
    }
}
