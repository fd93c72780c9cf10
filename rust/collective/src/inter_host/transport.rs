//! Messages between hosts: any number to and from any ranks at once, over several sockets to each.
//!
//! It owns the links that carry the data of collective operations, and has them opened when a message first needs
//! them. All of them are written and read as they are ready, so two ranks that send to each other can't block each
//! other.
//!
//! - GROUP-51 (labelled): a message says what call it belongs to and how long it is. A receiver that expects something
//!   else fails, and the error names both calls.
//! - GROUP-52 (ends): a transfer, also one that waits for a link to be opened, ends for the same reasons as a
//!   [`Watch`]: the deadline, a failure, or a rank that leaves.

use std::collections::HashMap;
use std::io::ErrorKind as IoKind;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock};

use phalanx_types::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags};

use crate::call::{CALL_WORDS, Call};
use crate::door::connections::{Connections, DATA};
use crate::door::link::Link;
use crate::intra_host::part;
use crate::kernels::Combine;
use crate::wait::{AwaitedRank, Watch, mismatch};

const HEADER_BYTES: usize = (CALL_WORDS + 1) * 8;
/// Shorter messages go over one socket: another system call costs more than it brings.
const SHORTEST_STRIPE: usize = 256 << 10;
/// How much is sent before it is looked whether something has arrived: what is on its way stays in the caches.
const BURST_BYTES: usize = 64 << 10;
/// How much of a message is combined at a time: a whole number of elements.
const CHUNK_BYTES: usize = 128 << 10;
/// Tries before the kernel is asked to say when there is something: some tens of microseconds, as long as an answer
/// takes on a fast network, or a processor to wake up.
const TRIES: u32 = 100;

/// The links to ranks of other hosts.
pub(crate) struct Transport {
    /// What opens them; None where there are no such ranks.
    connections: Option<Arc<Connections>>,
    /// By rank, those that are open.
    links: HashMap<usize, Box<[OnceLock<Link>]>>,
}

/// A message to a rank.
pub(crate) struct Outgoing<'a> {
    pub(crate) to: usize,
    pub(crate) bytes: &'a [u8],
}

/// A message from a rank.
pub(crate) struct Incoming<'a> {
    pub(crate) from: usize,
    pub(crate) bytes: &'a mut [u8],
    /// Where given, what arrives is combined, as the first source, with the bytes that are there; else it replaces
    /// them.
    pub(crate) combine: Option<&'a Combine>,
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(from: usize, bytes: &'a mut [u8]) -> Incoming<'a> {
        Incoming { from, bytes, combine: None }
    }
}

/// The part of a message that one socket sends: the header, on the first, then bytes.
struct Sending<'a> {
    to: usize,
    link: &'a Link,
    header: &'a [u8],
    bytes: &'a [u8],
}

/// The part of a message that one socket receives.
struct Receiving<'a> {
    from: usize,
    link: &'a Link,
    header: [u8; HEADER_BYTES],
    /// Bytes of the header that are still to come.
    header_left: usize,
    bytes: &'a mut [u8],
    filled: usize,
    /// Of the whole message.
    length: usize,
    combine: Option<&'a Combine>,
    /// What is to be combined next, as far as it has arrived.
    chunk: Vec<u8>,
    arrived: usize,
}

impl Transport {
    /// To each of these ranks at most so many links.
    pub(crate) fn new(
        connections: Option<Arc<Connections>>,
        ranks: impl Iterator<Item = usize>,
        links: u32,
    ) -> Transport {
        let none = || (0..links).map(|_| OnceLock::new()).collect();
        Transport { connections, links: ranks.map(|rank| (rank, none())).collect() }
    }

    fn places(&self, rank: usize) -> Result<&[OnceLock<Link>]> {
        let found = self.links.get(&rank);
        found
            .map(|links| &links[..])
            .ok_or_else(|| Error::new(ErrorKind::Invalid, format!("no connection to rank {rank}")))
    }

    /// The links that a message of so many bytes to or from a rank takes, which are open.
    fn links(&self, rank: usize, bytes: usize) -> Result<impl ExactSizeIterator<Item = &Link>> {
        let places = self.places(rank)?;
        let links: Vec<&Link> =
            places[..stripes(bytes, places.len())].iter().filter_map(OnceLock::get).collect();
        Ok(links.into_iter())
    }

    /// Has the links opened that these messages take, by rank and length, and waits for them.
    fn open(&self, watch: &Watch<'_>, messages: impl Iterator<Item = (usize, usize)>) -> Result<()> {
        let mut missing = Vec::new();
        for (rank, bytes) in messages {
            let places = self.places(rank)?;
            let used = places.iter().enumerate().take(stripes(bytes, places.len()));
            let unopened = used.filter(|(_, place)| place.get().is_none());
            missing.extend(unopened.map(|(number, place)| ((rank, DATA + number as u32), place)));
        }
        let Some(connections) = self.connections.as_ref().filter(|_| !missing.is_empty()) else {
            return Ok(());
        };
        // All at once.
        missing.iter().for_each(|(wanted, _)| connections.ask(*wanted));
        let mut is_busy = false;
        for (wanted, place) in missing {
            while place.get().is_none() {
                let left = watch.peers.has_left(wanted.0);
                if let Some(link) = connections.take(wanted)? {
                    let _ = place.set(link);
                } else if left {
                    // GROUP-15: it has sent nothing here.
                    return watch.not_left(Some(wanted.0));
                } else {
                    connections.wait(wanted, watch.longest_nap(is_busy));
                    let trouble = || connections.trouble(wanted);
                    is_busy = watch.look_around(wanted.0).map_err(|error| because(error, trouble()))?;
                }
            }
        }
        Ok(())
    }

    /// Sends and receives all of it. At most one message to, and one from, each rank.
    pub(crate) fn transfer(
        &self,
        watch: &Watch<'_>,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
    ) -> Result<()> {
        let lengths = outgoing.iter().map(|one| (one.to, one.bytes.len()));
        self.open(watch, lengths.chain(incoming.iter().map(|one| (one.from, one.bytes.len()))))?;
        let headers: Vec<[u8; HEADER_BYTES]> =
            outgoing.iter().map(|one| header(watch.call, one.bytes.len())).collect();
        let mut sending = Vec::new();
        for (message, header) in outgoing.iter().zip(&headers) {
            let links = self.links(message.to, message.bytes.len())?;
            let count = links.len();
            for (number, link) in links.enumerate() {
                let header = if number == 0 { &header[..] } else { &[] };
                let bytes = &message.bytes[part(message.bytes.len(), number, count)];
                sending.push(Sending { to: message.to, link, header, bytes });
            }
        }
        let mut receiving = Vec::new();
        for message in incoming {
            let links = self.links(message.from, message.bytes.len())?;
            let (length, count) = (message.bytes.len(), links.len());
            let mut rest = &mut *message.bytes;
            for (number, link) in links.enumerate() {
                let (bytes, others) = rest.split_at_mut(part(length, number, count).len());
                rest = others;
                let header_left = if number == 0 { HEADER_BYTES } else { 0 };
                receiving.push(Receiving {
                    from: message.from,
                    link,
                    header: [0; HEADER_BYTES],
                    header_left,
                    bytes,
                    filled: 0,
                    length,
                    combine: message.combine,
                    chunk: Vec::new(),
                    arrived: 0,
                });
            }
        }
        run(watch, sending, receiving)
    }
}

/// A deadline's error, with what kept a link from being opened.
fn because(error: Error, trouble: Option<Error>) -> Error {
    match trouble.filter(|_| error.kind() == ErrorKind::Timeout) {
        Some(trouble) => Error::new(error.kind(), format!("{error}; connecting to it failed: {trouble}")),
        None => error,
    }
}

fn stripes(bytes: usize, sockets: usize) -> usize {
    (bytes / SHORTEST_STRIPE).clamp(1, sockets)
}

fn header(call: Call, length: usize) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let words = call.words().into_iter().chain([length as u64]);
    bytes.as_chunks_mut::<8>().0.iter_mut().zip(words).for_each(|(field, word)| *field = word.to_le_bytes());
    bytes
}

fn run(watch: &Watch<'_>, mut sending: Vec<Sending<'_>>, mut receiving: Vec<Receiving<'_>>) -> Result<()> {
    let mut idle = 0;
    loop {
        let mut has_moved = false;
        for one in &mut sending {
            has_moved |= one.advance(watch)?;
        }
        for one in &mut receiving {
            has_moved |= one.advance(watch)?;
        }
        sending.retain(|one| !one.header.is_empty() || !one.bytes.is_empty());
        receiving.retain(|one| one.header_left > 0 || one.filled < one.bytes.len());
        if sending.is_empty() && receiving.is_empty() {
            return Ok(());
        }
        if has_moved {
            idle = 0;
        } else if idle < TRIES {
            idle += 1;
            rustix::thread::sched_yield();
        } else {
            let writable =
                sending.iter().map(|one| PollFd::from_borrowed_fd(one.link.as_fd(), PollFlags::OUT));
            let readable =
                receiving.iter().map(|one| PollFd::from_borrowed_fd(one.link.as_fd(), PollFlags::IN));
            let fds: Vec<PollFd<'_>> = writable.chain(readable).collect();
            let whom = receiving.first().map(|one| one.from).or(sending.first().map(|one| one.to));
            let whom = AwaitedRank { rank: whom.unwrap_or_default(), last_call: None };
            if !watch.until_ready(&fds, &whom)? {
                let late = receiving.iter().map(|one| one.from).chain(sending.iter().map(|one| one.to));
                watch.still_there(late)?;
            }
        }
    }
}

impl Sending<'_> {
    fn advance(&mut self, watch: &Watch<'_>) -> Result<bool> {
        let (mut has_moved, mut burst) = (false, 0);
        while !self.header.is_empty() || !self.bytes.is_empty() {
            let next = if self.header.is_empty() { &mut self.bytes } else { &mut self.header };
            match self.link.write(&next[..next.len().min(BURST_BYTES)]) {
                Ok(count) => {
                    *next = &next[count..];
                    has_moved = true;
                    burst += count;
                    if burst >= BURST_BYTES {
                        break;
                    }
                }
                Err(error) if error.kind() == IoKind::WouldBlock => break,
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => return Err(watch.broken_connection(self.to, &error)),
            }
        }
        Ok(has_moved)
    }
}

impl Receiving<'_> {
    fn advance(&mut self, watch: &Watch<'_>) -> Result<bool> {
        let mut has_moved = false;
        while self.header_left > 0 || self.filled < self.bytes.len() {
            match self.link.read(self.unfilled()) {
                Ok(0) => return Err(watch.broken_connection(self.from, &IoKind::UnexpectedEof.into())),
                Ok(count) if self.header_left > 0 => {
                    self.header_left -= count;
                    if self.header_left == 0 {
                        self.check(watch)?;
                    }
                }
                Ok(count) => self.take(count),
                Err(error) if error.kind() == IoKind::WouldBlock => break,
                Err(error) if error.kind() == IoKind::Interrupted => continue,
                Err(error) => return Err(watch.broken_connection(self.from, &error)),
            }
            has_moved = true;
        }
        Ok(has_moved)
    }

    /// Where the next bytes go.
    fn unfilled(&mut self) -> &mut [u8] {
        if self.header_left > 0 {
            return &mut self.header[HEADER_BYTES - self.header_left..];
        }
        let rest = &mut self.bytes[self.filled..];
        if self.combine.is_none() {
            return rest;
        }
        let size = rest.len().min(CHUNK_BYTES);
        self.chunk.resize(size, 0);
        &mut self.chunk[self.arrived..]
    }

    /// Takes bytes that have arrived where [`Receiving::unfilled`] said. A chunk is combined while the kernel receives
    /// the next, and while it is in the cache.
    fn take(&mut self, count: usize) {
        let Some(combine) = self.combine else {
            self.filled += count;
            return;
        };
        self.arrived += count;
        if self.arrived == self.chunk.len() {
            combine.apply(&mut self.bytes[self.filled..][..self.arrived], 1, &[&self.chunk]);
            self.filled += self.arrived;
            self.arrived = 0;
        }
    }

    /// GROUP-51
    fn check(&self, watch: &Watch<'_>) -> Result<()> {
        let (words, _) = self.header.as_chunks::<8>();
        let theirs = Call::from_words(std::array::from_fn(|word| u64::from_le_bytes(words[word])));
        let length = u64::from_le_bytes(words[CALL_WORDS]);
        if theirs != watch.call {
            return Err(mismatch(self.from, theirs, watch.peers.me(), watch.call));
        }
        expect_length(self.from, length, watch.peers.me(), self.length)
    }
}

fn expect_length(from: usize, sent: u64, me: usize, expected: usize) -> Result<()> {
    if sent == expected as u64 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!("rank {from} sends {sent} bytes to rank {me}, which expects {expected}"),
    ))
}
